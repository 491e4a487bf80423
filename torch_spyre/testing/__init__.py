"""PyTorch's own tests on the card, chosen and judged by a configuration: ``python -m torch_spyre.testing run FILE``.

A configuration (:mod:`.configuration`) says which tests of which files have to pass, may fail or are left out, and for
which ops, modules and dtypes. Nothing of PyTorch's sources is changed: :mod:`.device_base` stands in for the test base
that PyTorch has for devices like this one, :mod:`.plugin` marks what pytest has collected, :mod:`.runner` runs a
process for each file and adds up.
"""
