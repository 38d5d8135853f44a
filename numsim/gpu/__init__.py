"""Kernels of numsim's own for NVIDIA GPUs: one tensor-core instruction at a time, and the emulator on ordinary cores.

* ``instructions``: which tile an instruction computes, which GPU has it, how PTX writes it.
* ``layouts``: where the elements of a tile lie, in registers, shared memory and tensor memory: the PTX manual's tables.
* ``blackwell``: what Blackwell adds to them: FP6 and FP4 in bytes, block scales, tcgen05's descriptors.
* ``compiler``, ``driver``: NVRTC and the driver through cuda-bindings; every return code is looked at.
* ``units``: whole questions on an instruction: batches and matrices, in tiles, chained along K.
* ``emulator``: the same questions for other generations' units, in integers on ordinary cores.
* ``ptx``: the line of PTX that runs an instruction; ``cu``: the kernels around it, CUDA C++.

Nothing here needs a GPU to be imported, compiled or tested; ``machines/cuda.py`` is what people use.
"""
