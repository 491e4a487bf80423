"""What makes unmodified Hugging Face models run well on the card; applied when their package is imported.

Every change looks at the device of the model at hand: models elsewhere run the package's own code.

``generate`` works as it does on other accelerators, with three differences that are not seen in its results:

* The sequences themselves stay on the host (``host_sequences.py``). They grow by a token at a time, and each length
  would be a program.
* Prompts are padded on the left to a size of the model's ladder, masked, and with the positions that they have without
  padding (``padded_prompts.py``); logits processors, criteria and streamers never see the padding.
* The cache is a :class:`~.bucketed_cache.BucketedCache` unless the caller chose one, or the model was shown not to be
  fit for it (``cache_fitness.py``): then it is the package's own, and nothing is padded.

``fixes.py`` lists what is changed in which module of the package; ``warm_up`` compiles ahead of the first request.
"""

from .warm_up import warm_up

__all__ = ["warm_up"]
