"""How gradients travel: as they are, or as 16-bit floats."""
import torch


class Compressor:
    """What compress() returns beside the tensor is passed to decompress()."""

    @staticmethod
    def compress(tensor):
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, context):
        raise NotImplementedError


class NoneCompressor(Compressor):
    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        return tensor


class FP16Compressor(Compressor):
    """Floats travel, and are summed, in 16 bits."""

    @staticmethod
    def compress(tensor):
        return (tensor.to(torch.float16) if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor, context):
        return tensor.to(context)


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor
