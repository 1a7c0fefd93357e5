"""A request for usage (token counts) changes a stream; this module undoes the change.
`compare_streams` finds the change from two streams. `StreamUsage` then restores chunks. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

Json = dict[str, Any]

ChunkKind = Literal["bare", "silent", "words", "end"]
"""`bare`: without choices; `silent`: without words; `words`; `end`: ends a choice."""

_TOKEN_FIELDS: Final = frozenset(("index", "delta", "text", "token_ids", "logprobs"))
_WORD_FIELDS: Final = frozenset(("index", "delta", "text"))


def find_kind(chunk: Json) -> ChunkKind:
    """Return the kind of a chunk; its token fields are ignored."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices:
        return "bare"
    if any(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices):
        return "end"
    return "silent" if all(_is_empty(choice, _TOKEN_FIELDS) for choice in choices) else "words"


def is_silent(choice: Any) -> bool:
    """Return whether a chunk's choice holds nothing for the client."""
    return _is_empty(choice, _WORD_FIELDS)


def _is_empty(choice: Any, but: frozenset[str]) -> bool:
    """Return whether a choice has no words, and no values except in the fields `but`."""
    if not isinstance(choice, dict) or choice.get("text"):
        return False
    delta = choice.get("delta")
    # This runs for each chunk, and a loop is faster than a generator.
    for value in delta.values() if isinstance(delta, dict) else (delta,):
        if value is not None:
            return False
    return {name for name, value in choice.items() if value is not None} <= but


def _is_blank(choice: Any) -> bool:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict) or not all(said in (None, "") for said in delta.values()):
        return False
    return _is_empty({**choice, "delta": None}, _TOKEN_FIELDS)


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """How an engine's streams change if a request asks for usage."""

    told_in: frozenset[ChunkKind] = frozenset(("bare",))
    """Kinds of chunks that have usage; empty if the engine is not asked for it."""
    own_chunks: frozenset[ChunkKind] = frozenset(("bare",))
    """Kinds of chunks that the engine only sends for usage."""
    null: bool = False
    """Whether chunks have `"usage": null` if usage was not asked for."""
    moved: Mapping[str, Any] = field(default_factory=dict)
    """Fields that move from the chunk that ends a choice to the chunk with usage."""

    def is_own_chunk(self, chunk: Json) -> bool:
        """Return whether the engine sent a chunk only for usage."""
        if chunk.get("usage") is None:
            return False
        kind = find_kind(chunk)
        if kind == "words" and kind not in self.told_in and all(map(_is_blank, chunk["choices"])):
            kind = "silent"
        return kind in self.own_chunks

    def strip(self, chunk: Json) -> Json:
        """Return the chunk as if usage was not asked for; the same object if nothing changes."""
        if "usage" in chunk:
            asked = chunk["usage"] is None or find_kind(chunk) in self.told_in
            if asked and self.null:
                chunk = {**chunk, "usage": None}
            elif asked:
                chunk = {name: value for name, value in chunk.items() if name != "usage"}
        if self.moved and find_kind(chunk) == "end":
            missing = {k: v for k, v in self.moved.items() if chunk.get(k) is None}
            chunk = {**chunk, **missing}
        return chunk


def compare_streams(plain: Sequence[Json], asked: Sequence[Json]) -> StreamUsage | None:
    """Return the change from stream `plain` (without usage) to `asked`; None if one is empty."""
    if not plain or not asked:
        return None
    tellers = [chunk for chunk in asked if chunk.get("usage") is not None]
    if any(chunk.get("usage") is not None for chunk in plain):
        return StreamUsage(frozenset(), frozenset())
    told_in = frozenset(map(find_kind, tellers))
    return StreamUsage(
        # If chunks of two kinds have usage, all kinds may; a short stream may lack some kinds.
        told_in if len(told_in) < 2 else frozenset(get_args(ChunkKind)),
        frozenset(_find_own_kinds(plain, asked, tellers)),
        any("usage" in chunk for chunk in plain),
        dict(_find_moves(plain, asked, tellers)),
    )


def _find_own_kinds(
    plain: Sequence[Json], asked: Sequence[Json], tellers: Sequence[Json]
) -> Iterator[ChunkKind]:
    """Yield the kinds of additional chunks in `asked` that only carry usage."""
    before, after, telling = (Counter(map(find_kind, chunks)) for chunks in (plain, asked, tellers))
    # The request for token ids adds silent chunks, too.
    if telling["silent"] and not before["silent"]:
        yield "silent"
    if telling["bare"] and after["bare"] - before["bare"] >= telling["bare"]:
        yield "bare"
    if telling["end"] and before["end"] and after["end"] - before["end"] >= telling["end"]:
        yield "end"


def _find_moves(
    plain: Sequence[Json], asked: Sequence[Json], tellers: Sequence[Json]
) -> Iterator[tuple[str, Any]]:
    """Yield the fields that move from the end chunk in `plain` to the usage chunk in `asked`."""
    ends = [next((c for c in s if find_kind(c) == "end"), Json()) for s in (plain, asked)]
    for name, value in ends[0].items():
        if ends[1].get(name) is None and any(chunk.get(name) == value for chunk in tellers):
            yield name, value
