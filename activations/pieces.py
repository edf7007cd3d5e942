"""SentencePiece: write a vocabulary as a `.model` file, and the small tokenizer that reads it.

The file is a protocol buffer of two levels, so its few fields are written by hand: no protobuf package is needed.
Field numbers: google/sentencepiece, src/sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_BPE = 2


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(int(value))


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def bpe_model(pieces: Sequence[tuple[str, float, int]], *, unk: int, bos: int, eos: int, pad: int) -> bytes:
    """A byte-fallback BPE model that changes nothing in the text: no normalising, no added space, all spaces kept.

    Args:
        pieces: (text, score, type) of every id in order; spaces are written as "▁".
        unk, bos, eos, pad: Ids; the piece at `unk` must have type UNKNOWN.
    """
    body = [_bytes(1, _bytes(1, text.encode()) + _float(2, score) + _int(3, kind)) for text, score, kind in pieces]
    trainer = [_int(3, _BPE), _int(4, len(pieces)), _int(35, True)]
    for offset, special in enumerate((unk, bos, eos, pad)):
        # The library finds these by their text (fields 45 to 48), whatever the ids (40 to 43) say.
        trainer += [_int(40 + offset, special), _bytes(45 + offset, pieces[special][0].encode())]
    normalizer = [_bytes(1, b"identity"), _int(3, False), _int(4, False), _int(5, True)]
    return b"".join([*body, _bytes(2, b"".join(trainer)), _bytes(3, b"".join(normalizer))])


class SentencePieceTokenizer:
    """The part of a tokenizer that this project calls. `encode` puts BOS first."""

    def __init__(self, path: str | Path):
        from sentencepiece import SentencePieceProcessor

        self._model = SentencePieceProcessor(model_file=str(path))
        self.bos_token_id, self.eos_token_id = self._model.bos_id(), self._model.eos_id()

    def __len__(self) -> int:
        return self._model.get_piece_size()

    def encode(self, text: str) -> list[int]:
        return [self.bos_token_id, *self._model.encode(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return self._model.decode([int(i) for i in ids])

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return self._model.id_to_piece([int(i) for i in ids])
