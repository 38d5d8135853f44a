"""The codebooks that block formats use; ``numsim.codebooks``, on the ground, is where they live."""

from __future__ import annotations

from numsim.codebooks import BNB_FP4, INT4, INT8, MXINT8_ELEMENT, NF4_ELEMENT, Codebook

__all__ = ["BNB_FP4", "INT4", "INT8", "MXINT8_ELEMENT", "NF4_ELEMENT", "Codebook"]
