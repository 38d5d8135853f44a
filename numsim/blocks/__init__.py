"""Block formats: elements that share scales, from one scale a tensor to MXFP4 and NVFP4.

``quantize`` turns numbers into a ``BlockArray`` of codes and scales; ``BlockFormat`` records say how.
"""

from numsim.blocks.array import BlockArray, quantize
from numsim.blocks.codebooks import INT4, INT8, NF4_ELEMENT, Codebook
from numsim.blocks.dot import dot, matmul
from numsim.blocks.double_quant import DoubleQuantized, double_quantize, dynamic_map, normal_floats
from numsim.blocks.explain import explain_block
from numsim.blocks.formats import MXFP8, NVFP4, BlockFormat, get_block_format, list_block_formats
from numsim.blocks.hadamard import hadamard, hadamard_matrix, random_signs
from numsim.blocks.nvfp4 import four_over_six, nvfp4_alpha
from numsim.blocks.rules import RULES

__all__ = [
    "INT4",
    "INT8",
    "MXFP8",
    "NF4_ELEMENT",
    "NVFP4",
    "RULES",
    "BlockArray",
    "BlockFormat",
    "Codebook",
    "DoubleQuantized",
    "dot",
    "double_quantize",
    "dynamic_map",
    "explain_block",
    "four_over_six",
    "get_block_format",
    "hadamard",
    "hadamard_matrix",
    "list_block_formats",
    "matmul",
    "normal_floats",
    "nvfp4_alpha",
    "quantize",
    "random_signs",
]
