"""The first image of an observation as a PNG that a page can hold."""

import struct
import zlib
from base64 import b64encode

import numpy as np
from jaxtyping import UInt8

from gelato.data.observations import ObservationLayout, find_channels

# Pixels per side of a frame on the page, at most.
_LONGEST = 128


def list_frames(pixels: UInt8[np.ndarray, "n pixels"], observed: ObservationLayout) -> list[str]:
    """Return the first image of every state as a data URI."""
    image, part = observed.images[0], observed.image_parts[0]
    frames = pixels[:, part].reshape(-1, *image)
    axis = find_channels(image)
    if axis is not None:
        frames = np.moveaxis(frames, axis + 1, -1)
        # Three channels are colours. Of others, such as the frames of a stack, the last is shown.
        frames = frames if frames.shape[-1] == 3 else frames[..., -1]
    step = -(-max(frames.shape[1:3]) // _LONGEST)
    return [make_data_uri(frame) for frame in frames[:, ::step, ::step]]


def make_data_uri(frame: UInt8[np.ndarray, "height width *colours"]) -> str:
    """Return a gray or coloured image as the data URI of a PNG."""
    height, width = frame.shape[:2]
    kind = 0 if frame.ndim == 2 else 2
    rows = frame.reshape(height, -1)
    # Every row begins with the number of its filter; 0 is none.
    content = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(content, 9)), (b"IEND", b""))
    written = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks:
        check = zlib.crc32(name + data)
        written += struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)
    return f"data:image/png;base64,{b64encode(written).decode()}"
