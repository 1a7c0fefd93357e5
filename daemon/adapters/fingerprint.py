"""Fingerprints: a model's answers to fixed probes, which tell adapters apart.

    expected = verify(folder).fingerprint            computed from the weights (daemon/engine)
    seen = replica.score(name, expected.prompts)     answered by an engine (replica.py)
    prove(seen, expected, tolerance, rivals)         or NotProven, with the numbers

Neither a successful load nor a name proves an adapter. So the engine writes a few tokens greedily
after each of 16 prompts and reports the likeliest tokens of each step with their log-probabilities.
They must match those that another process computed from base and adapter. The prompts are random
token ids of the vocabulary, so they need no tokenizer. They are shorter than a block of vLLM's
prefix cache, so no answer comes from that cache.

`distance` is the root mean square over the reported tokens, in nats. Measured on the reference
policy with adapters of rank 8, on an idle engine and while other adapters served six clients:

    embedded engine, float32                  0.000002 to 0.000005   from the computed answers
    vLLM 0.32.0 on a CPU, float32             0.000002 to 0.000004
    vLLM 0.32.0 on a CPU, bfloat16            0.046 to 0.065
    trained for 8 to 200 steps                0.58 to 1.46           from their base
    neighbouring checkpoints of a job         0.25 to 1.4            from each other
    random, factor B of spread 0.0003         0.009                  from their base
    random, factor B of spread 0.03           0.67

`tolerance` measures an engine's precision on its base, asked once while no adapter answers; it is
at least `EXACT`. Within it, an adapter's distance from other answers must be `NEARER` times that
from its expected ones. In float32, this tells an adapter at distance 0.008 from its base. In
bfloat16, it refuses an adapter at 0.06 or nearer, because the rounding has a larger effect.

Not covered: a change that moves no log-probability by more than the tolerance (files have hashes
for that); vLLM's modes that report other numbers than the softmax's logarithms; GPUs (unmeasured).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import isfinite, sqrt
from random import Random
from typing import Any, Final

from events.errors import KintsugiError
from events.messages import StrictModel

PROBES: Final = 16
LENGTH: Final = 16
"""Tokens of a prompt."""
TOKENS: Final = 4
"""Tokens written after each prompt."""
LIKELIEST: Final = 3
"""Likeliest tokens reported for each step."""

EXACT: Final = 1e-3
"""The least tolerance: 200 times the distance in float32."""
COARSEST: Final = 0.25
"""Largest distance of an engine's base answers from those computed, in nats."""
PRECISION: Final = 3.0
"""Tolerance as a multiple of the distance of an engine's base answers from those computed."""
NEARER: Final = 1.5
"""Least ratio of two distances of an answer: from any other answer, and from the expected one."""

_SEED: Final = "kintsugi fingerprint 1"
_ID: Final = "token_id:"
_BASE: Final = "its base"

Prompts = tuple[tuple[int, ...], ...]

Step = tuple[tuple[int, float], ...]
"""The written token first, then the likeliest others, each with its log-probability."""


class Unreadable(KintsugiError):
    """An engine's answer to the probes that lacks the requested values."""


class NotProven(KintsugiError):
    """The engine's answers are not the adapter's, or could be those of another adapter."""


class OtherBase(NotProven):
    """The engine's base model is another one than the adapter's base."""


class BaseMixup(NotProven):
    """The engine's base answers differently while an adapter answers."""


class Fingerprint(StrictModel):
    """The answers of one model to the probes."""

    answers: tuple[tuple[Step, ...], ...]


class Expectation(StrictModel):
    """The answers of an adapter and its base to the probes, computed from their weights."""

    prompts: Prompts
    dtype: str
    """Type of the computation in torch's words: float32, bfloat16."""
    base: Fingerprint
    adapter: Fingerprint


@dataclass(frozen=True, slots=True)
class Proof:
    """Distances of an engine's answers, which prove that the adapter gave them."""

    distance: float
    """Distance from the expected answers, in nats."""
    from_base: float
    """Distance from the expected answers of the base, in nats."""
    tolerance: float


def prompts(vocabulary: int) -> Prompts:
    """Return the prompts for a model with this many token ids; always the same. They leave out the
    first and last eighth, which hold most tokenizers' special tokens."""
    chance, margin = Random(_SEED), vocabulary // 8
    return tuple(
        tuple(chance.randrange(margin, vocabulary - margin) for _ in range(LENGTH))
        for _ in range(PROBES)
    )


def question(model: str, prompts: Prompts) -> dict[str, Any]:
    """Return the body of a request to /v1/completions."""
    return {
        "model": model,
        "prompt": [list(prompt) for prompt in prompts],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": LIKELIEST,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def parse_answer(document: Any, prompts: Prompts) -> Fingerprint:
    """Return the fingerprint in an engine's response to `question`. Raises Unreadable."""
    try:
        choices = sorted(document["choices"], key=lambda choice: int(choice["index"]))
        asked = [tuple(choice["prompt_token_ids"]) for choice in choices]
        answers = tuple(tuple(_steps(choice)) for choice in choices)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(
            f"the answer to the probes cannot be read ({type(error).__name__}: {error}): the "
            "engine must tell token ids and log-probabilities, as vLLM and the embedded one do"
        ) from error
    if asked != list(prompts):
        raise Unreadable("the engine answered other prompts than it was asked")
    if lengths := {len(answer) for answer in answers} - {TOKENS}:
        raise Unreadable(f"an answer has {lengths.pop()} tokens, not the {TOKENS} asked for")
    return Fingerprint(answers=answers)


def _steps(choice: Mapping[str, Any]) -> Iterator[Step]:
    written, tops = choice["token_ids"], choice["logprobs"]["top_logprobs"]
    for token, chances in zip(written, tops, strict=True):
        logprobs = {int(name.removeprefix(_ID)): float(chance) for name, chance in chances.items()}
        if not all(map(isfinite, logprobs.values())):
            raise ValueError(f"a log-probability is no number: {chances}")
        others = sorted(
            (item for item in logprobs.items() if item[0] != token), key=lambda item: -item[1]
        )
        yield (token, logprobs[token]), *others


def distance(first: Fingerprint, second: Fingerprint) -> float:
    """Return the root mean square of the differences between log-probabilities, in nats. Both must
    answer the same prompts. Each prompt's steps count up to and including the first with different
    tokens, because later ones have another context."""
    gaps = list(_differences(first, second))
    return sqrt(sum(gap * gap for gap in gaps) / len(gaps))


def _differences(first: Fingerprint, second: Fingerprint) -> Iterator[float]:
    for own, theirs in zip(first.answers, second.answers, strict=True):
        for mine, yours in zip(own, theirs, strict=True):
            yield from _gaps(dict(mine), dict(yours))
            if mine[0][0] != yours[0][0]:
                break


def _gaps(first: Mapping[int, float], second: Mapping[int, float]) -> Iterator[float]:
    """Yield each token's log-probability difference, or its least value if one side lacks it."""
    for token, chance in chain(first.items(), second.items()):
        if token in first and token in second:
            yield first[token] - second[token]
        else:
            silent = second if token in first else first
            yield max(0.0, chance - min(silent.values()))


def tolerance(base: Fingerprint, expected: Expectation) -> float:
    """Return the distance in nats that an adapter's answers may have from the expected ones. It
    follows from the distance of the engine's base answers `base`. Raises OtherBase."""
    noise = distance(base, expected.base)
    if noise > COARSEST:
        raise OtherBase(
            f"the engine's base answers {noise:.3f} nats from what the base of this adapter "
            f"computes, and {COARSEST} is the most that precision explains: serve the base that "
            "the adapter was trained on (and ask while no adapter answers: vLLM 0.32 on a CPU "
            "mixes them, see docs/serving.md, Replicas)"
        )
    return max(EXACT, PRECISION * noise)


def prove_base(seen: Fingerprint, expected: Expectation, tolerance: float) -> float:
    """Return the distance, in nats, of the base's answers `seen` while an adapter answers.
    `tolerance` is the limit, measured while no adapter answered. Raises BaseMixup."""
    gap = distance(seen, expected.base)
    if gap > tolerance:
        raise BaseMixup(
            f"while an adapter answers, the base answers {gap:.4f} nats from what it computes "
            f"({tolerance:.4f} are allowed), so base and adapters must not answer at once: vLLM on "
            "a CPU gives the base the adapter of its last slot; start it again with the plugin in "
            "ops/vllm/mend (docs/serving.md, Replicas), or have an adapter answer everything"
        )
    return gap


def prove(
    seen: Fingerprint,
    expected: Expectation,
    tolerance: float,
    rivals: Mapping[str, Expectation] | None = None,
) -> Proof:
    """Check that the answers `seen` are the adapter's and no rival's. `rivals` maps names to other
    adapters; the base is always a rival. An adapter with the same expected answers (the same
    weights) or with other prompts (another base) is no rival. Raises NotProven."""
    proof = Proof(distance(seen, expected.adapter), distance(seen, expected.base), tolerance)
    distances = {_BASE: proof.from_base}
    for name, rival in (rivals or {}).items():
        if rival.prompts == expected.prompts and rival.adapter != expected.adapter:
            distances[name] = distance(seen, rival.adapter)
    nearest = min(distances, key=lambda name: distances[name])
    if not proof.distance <= tolerance:
        raise NotProven(
            f"what answers is {proof.distance:.4f} nats from what the adapter computes "
            f"({tolerance:.4f} are allowed); nearest is {nearest}, at {distances[nearest]:.4f}: "
            "it is "
            "another adapter, another base, or damaged weights; unload it, and load the right files"
        )
    if not NEARER * proof.distance < distances[nearest]:
        raise NotProven(
            f"the adapter cannot be told from {nearest}: what answers is {proof.distance:.4f} nats "
            f"from what is expected and {distances[nearest]:.4f} from that; serve in a higher "
            "precision "
            "(float32), or train it further"
        )
    return proof
