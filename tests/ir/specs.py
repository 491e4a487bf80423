"""OpSpecs as text, for the tests of several forms of a kernel."""

ADD = """\
add over c0: 5/5, c1: 200/1
  in  arg0 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out pool@1024 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  with {"constants": {"1": 2.5}, "source": "model.py:7"}"""

GATHER = """\
gather over c0: 3/1, c1: 64/1
  in  arg0 SEN169_FP16[1, 10, 64] at [floor(c1/64), IndirectAccess(arg1), Mod(c1, 64)]
  in  arg1 IEEE_INT32[1, 32] at [0, c0]
  out arg2 SEN169_FP16[1, 3, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  with {"bounds": {"1": 10}}"""

FETCH = """\
copy over c0: 2/2, c1: 4/4, c2: 2/1, c3: 128/1
  in  lx@0 SEN169_FP16[2, 4, 64] at [floor(c3/64), c1, Mod(c3, 64)] of core 2*c0 + c2
  out lx@2048 SEN169_FP16[4, 1, 64] at [2*c2 + floor(c3/64), 0, Mod(c3, 64)]"""
