"""Block formats: elements that share scales, from one scale a tensor to MXFP4 and NVFP4.

``quantize`` turns numbers into a ``BlockArray`` of codes and scales; ``BlockFormat`` records say how.
"""

from numsim.blocks.array import BlockArray, quantize
from numsim.blocks.codebooks import INT4, INT8, NF4_ELEMENT, Codebook
from numsim.blocks.formats import MXFP8, NVFP4, BlockFormat, get_block_format, list_block_formats
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
    "get_block_format",
    "list_block_formats",
    "quantize",
]
