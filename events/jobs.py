"""The spec of a training job, as plain data: everything that its result depends on. It is written
when the job is requested, and every retry reads it back. The file JOB.json of `python -m
daemon.solver` has this form. This module does not import torch. An unknown field is an error.
schemas/JobSpec.v1.json freezes the schema."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from events.algorithm import Algorithm
from events.messages import StrictModel
from events.rollouts import Count, Id, Int64, Name

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=4096)]


def _is_absent(value: Any) -> bool:
    """Return whether an optional field is empty. Then it is not written, so older digests stay."""
    return not value


class LoraSettings(StrictModel):
    """Target layers and strength of an adapter."""

    rank: Annotated[int, Field(ge=1, le=512)] = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Last parts of linear layers' names; each must match at least one layer."""


class OptimizerSettings(StrictModel):
    """Settings of AdamW. The defaults suit LoRA on a model below 10 M parameters."""

    lr: Annotated[float, Field(gt=0)] = 2e-3
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.98,
    )
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_gradient_norm: Annotated[float, Field(gt=0)] = 1.0


class SftSettings(StrictModel):
    """Supervised training: length, batches and learning rate."""

    optimizer: OptimizerSettings = OptimizerSettings()
    epochs: Annotated[int, Field(ge=1)] = 1
    batch_tokens: Annotated[int, Field(ge=1)] = 4096
    """Tokens per optimizer step."""
    micro_tokens: Annotated[int, Field(ge=1)] = 8192
    """Padded tokens per forward pass."""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after the warmup."""
    seed: Int64 = 0


class Limits(StrictModel):
    """Limits that stop training when they are exceeded. None switches a limit off."""

    kl: Annotated[float, Field(gt=0)] | None = 0.3
    """Most divergence from the reference in nats per token, for `patience` steps."""
    ratio_low: Annotated[float, Field(ge=0)] | None = 0.8
    """Least mean ratio of new to old probabilities, at any step."""
    ratio_high: Annotated[float, Field(gt=1)] | None = 1.25
    entropy_factor: Annotated[float, Field(gt=1)] | None = 3.0
    """Entropy stays within this factor of the first step's, up and down, over `patience` steps."""
    malformed_factor: Annotated[float, Field(ge=1)] | None = 2.0
    """Most rollouts with malformed calls: their share at the first step times this, ..."""
    malformed_margin: Annotated[float, Field(ge=0)] = 0.02
    """... plus this; for `patience` steps, because one step is too small a sample."""
    patience: Annotated[int, Field(ge=1)] = 3


RewardKind = Literal["verdict", "repair", "both", "skill"]
"""Reward of a pool's rollouts. `verdict`: the verdict on the whole episode, less penalties for
conduct. `repair`: how well the first message repairs the wrong call of the task's lesson; then the
episode ends. `both`: the larger of the verdict and half of the repair reward, over the whole
episode. `skill`: whether the rollout shows a skill that successes have and failures lack."""


CHOOSER: Final = "router"
"""Value of `JobSpec.teaches` for a job that trains a panel's router."""

USER_LIMITS: Final = frozenset({"timeout", "api_key_variable", "budget"})
"""Fields of an EndpointUser that only concern its requests. The others identify the player."""


class EndpointUser(StrictModel):
    """A model behind an OpenAI-compatible endpoint that plays the user."""

    url: str
    """Ends in `/v1`."""
    model: str
    temperature: Annotated[float, Field(ge=0)] | None = None
    """Sampling temperature; None: the endpoint's default."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of a line; None: the endpoint's default."""
    candidates: Annotated[int, Field(ge=1)] = 1
    """Number of sampled lines from which one is chosen."""
    timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds for one line."""
    api_key_variable: str | None = None
    budget: Annotated[int, Field(ge=1)] | None = Field(default=None, exclude_if=_is_absent)
    """Most tokens in a job or a trial, counted by an upper estimate; None: no limit."""

    @property
    def simulator(self) -> str:
        """Return the name of the user's player in rollouts."""
        return name_simulator(self.model, self.candidates)


class AdapterUser(StrictModel):
    """An adapter of the job's own base that plays the user, on the agent's engine."""

    adapter: Name
    folder: str
    """Folder, relative to the home or absolute."""
    sha256: Sha256
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Temperature of sampled candidates. The first candidate of a message is decoded greedily."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    candidates: Annotated[int, Field(ge=1)] = 1

    @property
    def simulator(self) -> str:
        """Return the name of the user's player in rollouts."""
        return name_simulator(self.adapter, self.candidates)


ModelUser = EndpointUser | AdapterUser


def name_simulator(model: str, candidates: int) -> str:
    """Return the name of a model that plays users by choosing from `candidates` lines."""
    return model if candidates == 1 else f"{model} (best of {candidates})"


class TaskPool(StrictModel):
    """Tasks that groups are drawn from."""

    name: Name
    """Name in the metrics of its groups: a failure pattern, or `replay`."""
    share: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the pool among all pools."""
    tasks: Annotated[tuple[Id, ...], Field(min_length=1)]
    """Ids of tasks, drawn in shuffled order; none repeats before all were drawn."""
    replay: bool = False
    """Whether it serves to keep abilities that the policy has. Its share is fixed, and it is
    neither probed nor reported as a competence gap."""
    references: tuple[Id, ...] = ()
    """Tasks whose oracle rollouts the warm start trains on. They are not drawn."""
    successes: tuple[Id, ...] = Field(default=(), exclude_if=_is_absent)
    """Recorded rollouts that passed such tasks; the warm start trains on them unchanged."""
    environment: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, exclude_if=_is_absent
    )
    """Name or file path of the tasks' environment; None: the job's environment."""
    user: ModelUser | None = Field(default=None, exclude_if=_is_absent)
    """Model that plays the user; None: the environment's scripted user."""
    reward: RewardKind = Field(default="verdict", exclude_if=lambda value: value == "verdict")
    skill: Name | None = Field(default=None, exclude_if=_is_absent)
    """Skill that the tasks need, for a job that trains a router; None: no skill is needed."""

    @property
    def all_tasks(self) -> tuple[str, ...]:
        """Return all tasks of the pool: those to draw, then those for the warm start."""
        return (*self.tasks, *self.references)

    @property
    def is_plain(self) -> bool:
        """Return whether it has the job's environment, a scripted user and reward `verdict`."""
        return self.has_verdict_reward and self.user is None

    @property
    def has_verdict_reward(self) -> bool:
        """Return whether it has the job's environment and reward `verdict`, with any user."""
        return self.environment is None and self.reward == "verdict"

    @property
    def rewards_repairs(self) -> bool:
        """Return whether the reward includes repairs. Then each task must have a lesson."""
        return self.reward in ("repair", "both")

    @property
    def repair_count(self) -> int:
        """Return the number of tasks, those for the warm start too, that reward repairs."""
        return len(self.tasks) + len(self.references) if self.rewards_repairs else 0


class InProcessSource(StrictModel):
    """Rollouts are sampled in the job's own process."""

    kind: Literal["in_process"] = "in_process"
    slots: Annotated[int, Field(ge=1)] = 64
    """Concurrent episodes."""
    length: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of one conversation; None: the model's context length."""


class EndpointSource(StrictModel):
    """Rollouts come from an OpenAI-compatible server that loads adapters, at a limited rate."""

    kind: Literal["endpoint"]
    url: str
    """Ends in `/v1`."""
    model: str
    """Name of the base model on that server; the base answers until the first update."""
    concurrency: Annotated[int, Field(ge=1)] = 64
    """Concurrent episodes."""
    max_requests_per_second: Annotated[float, Field(gt=0)] | None = None
    timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds for one answer."""
    api_key_variable: str | None = None
    adapters: str | None = None
    """Folder for adapters that the server reads too; None: `versions` in the job's folder."""


class VllmSource(StrictModel):
    """Rollouts come from a vLLM server that the job starts on its checkpoint and stops."""

    kind: Literal["vllm"]
    python: str | None = None
    """Interpreter of an environment that has vLLM; None: KINTSUGI_VLLM_PYTHON names it."""
    concurrency: Annotated[int, Field(ge=1)] = 64
    timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds for one answer."""
    arguments: tuple[str, ...] = ()
    """More arguments for `vllm serve`, after the job's own."""


class Sampler(StrictModel):
    """Settings for sampling the rollouts of a job."""

    groups: Annotated[int, Field(ge=1)] = 8
    """Tasks per batch."""
    size: Annotated[int, Field(ge=2)] = 8
    """Rollouts per task (group size). At least 2, because rollouts of a task are compared."""
    rollouts: Annotated[int, Field(ge=1)] = 3072
    """Most rollouts of the job, including refills and reference trajectories."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] = 512
    """Most tokens per turn; a longer turn is cut off."""
    adaptive: bool = True
    """Whether shares of pools except replay fall with success: share × (1 − EMA of pass rates)."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of that moving average per group."""
    environments: Literal["mixed", "apart"] = Field(
        default="mixed", exclude_if=lambda value: value == "mixed"
    )
    """With several environments: a batch has tasks of all (`mixed`) or of one (`apart`)."""
    source: Annotated[
        InProcessSource | EndpointSource | VllmSource, Field(discriminator="kind")
    ] = InProcessSource()


class Probe(StrictModel):
    """A test on a pool's first groups whether training can help. They are trained on, too."""

    groups: Annotated[int, Field(ge=1)] = 8
    """Number of first groups of each pool except replay."""
    below: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Least share of groups with passes and failures. Below it the pool needs a warm start."""


class WarmStart(StrictModel):
    """Supervised training on the oracle's successes and the agent's own recorded ones."""

    mode: Literal["auto", "always"] = "auto"
    """`auto`: once, for pools under `probe.below`; `always`: for all pools, before other steps."""
    siblings: tuple[Id, ...] = ()
    """Tasks similar to those of the pools but with the opposite answer; also trained on."""
    successes: Sha256 | None = Field(default=None, exclude_if=_is_absent)
    """Hash of the file with the tokens of the pools' successes (daemon/jobs/own_successes.py)."""
    sft: SftSettings = SftSettings()


class KnownPattern(StrictModel):
    """A failure pattern's state after a round of the training history. A job's own rounds start
    from it (consumers/diagnosis/priority.py)."""

    pattern: Name
    """The pattern's name, `category|pivot`."""
    recurrence: Annotated[float, Field(ge=0)]
    streak: Annotated[int, Field(ge=0)]
    absent: Annotated[int, Field(ge=0)]
    pass_rate: Annotated[float, Field(ge=0, le=1)]
    attempts: Annotated[int, Field(ge=0)]
    passes: Annotated[int, Field(ge=0)]
    learnability: Annotated[float, Field(ge=0, le=1)]
    status: Name
    anchors: dict[str, float] = {}
    """Anchor -> weight."""
    operator: Literal["pinned", "muted"] | None = None


class JobRounds(StrictModel):
    """Rounds within a job. After each part of the budget except the last, the part's rollouts are
    diagnosed. New tasks are written for their failures, and the pools' shares change."""

    count: Annotated[int, Field(ge=2)]
    """Number of equal parts of the budget. The job closes `count` - 1 rounds."""
    cycle: Id
    """Cycle of the job; the tasks that it writes name this cycle."""
    alias: Name
    history: Annotated[int, Field(ge=0)]
    """Round of the training history that holds `patterns`."""
    tasks: Annotated[int, Field(ge=1)]
    """Most tasks per round."""
    explore: Annotated[float, Field(ge=0, le=1)]
    """Share of a round's tasks that are new; the others are failed tasks with another wording."""
    replay: Annotated[float, Field(ge=0, lt=1)]
    """Share, in groups for written tasks, of a new replay pool of passed tasks, if none exists."""
    patterns: tuple[KnownPattern, ...] = ()
    known: tuple[Id, ...] = ()
    """The agent's existing tasks outside the pools; they are not written again."""
    aims: tuple[Name, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Patterns to write tasks for, in a job for a skill; empty: all patterns that rounds find."""


class RouterOption(StrictModel):
    """An option from which a panel's router chooses."""

    skill: Name | None = None
    """Skill of the option; None: no skill of the panel is needed, and the base answers."""
    label: Annotated[str, Field(min_length=1, max_length=8)]
    """Text whose score as the next token is the option's score."""
    token: Count
    """The one token of `label` in the base's tokenizer."""
    description: Text
    example: Text = ""
    """A successful conversation of the skill for the router; may be empty."""


class PanelRouter(StrictModel):
    """Choice of a session's member by the scores of option labels as the next token."""

    form: Literal["labels", "head"] = Field(
        default="labels", exclude_if=lambda value: value == "labels"
    )
    """Form of the prompt. `labels`: a list of the options, in two orders. `head`: the session's own
    prompt, with an adapter on the model's output head that adds to the labels' logits."""
    adapter: Name | None = None
    """An adapter that was trained to choose; None: the base itself."""
    options: Annotated[tuple[RouterOption, ...], Field(min_length=2)]
    calibration: tuple[tuple[float, ...], ...] = ()
    """For each order of the labels, the options' scores in nats after an empty conversation. They
    are subtracted from a session's scores. Empty: nothing is subtracted."""

    @property
    def orders(self) -> int:
        """Return the number of prompts: one for each order of the labels."""
        return 2 if self.form == "labels" else 1

    @model_validator(mode="after")
    def _can_choose(self) -> Self:
        for what, values in (
            ("skill", [option.skill for option in self.options]),
            ("label", [option.label for option in self.options]),
            ("token", [option.token for option in self.options]),
        ):
            if len(values) != len(set(values)):
                raise ValueError(f"two options of a router have one {what}: {values}")
        if None not in [option.skill for option in self.options]:
            raise ValueError("a router needs an option without a skill, for the base")
        sizes = [len(scores) for scores in self.calibration]
        if sizes not in ([], [len(self.options)] * self.orders):
            raise ValueError(
                f"the calibration of a router of {len(self.options)} options has rows of {sizes} "
                f"scores; give one row per order of the labels ({self.orders}), or none"
            )
        return self


Chooser = PanelRouter

ChooserOption = RouterOption


class JobSpec(StrictModel):
    """One training run."""

    job: Name
    base: Name
    """Name of the base model in rollouts and adapters."""
    checkpoint: str
    """Directory of the weights that transformers reads."""
    base_sha256: Sha256 | None = None
    """Hash of the weights; None: any."""
    parent: str | None = None
    """Directory of the adapter to start from; None: a fresh one."""
    environment: str = Field(min_length=1)
    """Name of the environment, or path of the file that defines it."""
    benchmarks: str | None = None
    """Folder of real tasks, for environments that have some."""
    teaches: Literal["agent", "user", "router"] = Field(
        default="agent", exclude_if=lambda value: value == "agent"
    )
    """Part in a conversation that the job trains."""
    router: PanelRouter | None = Field(default=None, exclude_if=_is_absent)
    """Options and prompt of a router's job."""
    dialogues: Sha256 | None = Field(default=None, exclude_if=_is_absent)
    """Hash of the recorded dialogues' file in a job that trains a user; None: the oracle's only."""
    dialogue_count: int | None = Field(default=None, ge=0, exclude_if=_is_absent)
    """Number of accepted dialogues when a user's job was requested, used or not; None: unknown."""
    manners: tuple[Name, ...] = Field(default=(), exclude_if=_is_absent)
    """Styles of speech for a job that trains a user, used in turn. Empty: the tasks' own words."""
    pools: Annotated[tuple[TaskPool, ...], Field(min_length=1)]
    allowed_winnable: tuple[Name, ...] = Field(default=(), exclude_if=_is_absent)
    """Kinds of task that settings allow although a cheater wins them. It changes no result."""
    seed: Int64 = 0
    """Seed of all random choices: tasks, tokens, first weights."""
    sampler: Sampler = Sampler()
    probe: Probe = Probe()
    warm_start: WarmStart | None = None
    grpo: bool = True
    """Whether reinforcement learning runs; False: only the warm start."""
    rounds: JobRounds | None = Field(default=None, exclude_if=_is_absent)
    """Rounds within the job; None: the pools never change."""
    checkpoints: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Rollout counts N. The adapter of the last step within N is saved as `checkpoints/N`."""
    algorithm: Algorithm = Algorithm()
    optimizer: OptimizerSettings = OptimizerSettings()
    lora: LoraSettings = LoraSettings()
    limits: Limits = Limits()
    micro_tokens: Annotated[int, Field(ge=1)] = 8192
    """Padded tokens per forward pass of an update; bounds memory, not the result."""
    watch_reference: bool = False
    """Whether the divergence from the reference is computed where the loss needs none."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads; None: the process's default. An adapter's sha256 may differ by number."""
    tracker: str | None = Field(default=None, pattern="^(trackio|wandb):.+$")
    """Tracker that gets the metrics, as LIBRARY:PROJECT; it changes no result."""

    @property
    def target_pools(self) -> tuple[TaskPool, ...]:
        """Return the pools except replay pools."""
        return tuple(pool for pool in self.pools if not pool.replay)

    @property
    def environments(self) -> tuple[str, ...]:
        """Return the environments of the job, its own first."""
        own = (pool.environment for pool in self.pools if pool.environment is not None)
        return tuple(dict.fromkeys((self.environment, *own)))

    @property
    def batch(self) -> int:
        """Return the number of rollouts in a batch."""
        return self.sampler.groups * self.sampler.size

    @property
    def reference_count(self) -> int:
        """Return the number of trajectories of a warm start; each counts as a rollout."""
        if self.warm_start is None:
            return 0
        return sum(len(pool.references) for pool in self.pools) + len(self.warm_start.siblings)

    @model_validator(mode="after")
    def _pools_apart(self) -> Self:
        _once("two pools have one name", (pool.name for pool in self.pools))
        siblings = self.warm_start.siblings if self.warm_start else ()
        named = [task for pool in self.pools for task in pool.all_tasks]
        _once("a task stands twice among pools, references and siblings", (*named, *siblings))
        if not self.target_pools:
            raise ValueError("every pool is replay; name at least one that shall be learnt")
        return self

    @model_validator(mode="after")
    def _teaches(self) -> Self:
        if self.warm_start is None and not self.grpo:
            raise ValueError("without warm_start, grpo = false leaves nothing to do")
        targets = self.target_pools
        lacking = [pool.name for pool in targets if not (pool.references or pool.successes)]
        if self.warm_start is not None and len(lacking) == len(targets):
            raise ValueError(f"warm_start needs references, and pool {lacking[0]} has none")
        named = any(pool.successes for pool in self.pools)
        if named != (self.warm_start is not None and self.warm_start.successes is not None):
            raise ValueError(
                "successes of pools and warm_start.successes, the sha256 of their file, come "
                "together; one of them is missing"
            )
        if self.warm_start is not None and self.warm_start.mode == "auto" and not self.grpo:
            raise ValueError("warm_start.mode auto asks GRPO's batches; with grpo = false: always")
        return self

    @model_validator(mode="after")
    def _routes(self) -> Self:
        if (self.teaches == "router") != (self.router is not None):
            raise ValueError(
                f"a job that teaches the {self.teaches} has "
                f"{'no router' if self.router is None else 'a router'}; router and teaches "
                "'router' come together"
            )
        options = {None} if self.router is None else {o.skill for o in self.router.options}
        for pool in self.pools:
            if pool.skill not in options:
                raise ValueError(
                    f"pool {pool.name} is of skill {pool.skill}, and the router chooses among "
                    f"{', '.join(sorted(map(str, options)))}"
                )
        if self.router is not None and self.router.form == "head":
            count = len(self.router.options)
            if (self.lora.rank, self.lora.alpha, len(self.lora.targets)) != (count, count, 1):
                raise ValueError(
                    f"a router's head of {count} options is a LoRA of rank and alpha {count} on "
                    f"the output layer alone, and lora has rank {self.lora.rank}, "
                    f"alpha {self.lora.alpha:g} "
                    f"and targets {', '.join(self.lora.targets)}"
                )
        return self

    @model_validator(mode="after")
    def _reads_dialogues(self) -> Self:
        values = {
            "dialogues": self.dialogues,
            "dialogue_count": self.dialogue_count,
            "manners": self.manners,
        }
        for name, value in values.items():
            if value and self.teaches != "user":
                raise ValueError(
                    f"{name} are read by a job that teaches the user, and this one teaches the "
                    f"{self.teaches}; leave them out"
                )
        return self

    @model_validator(mode="after")
    def _within_budget(self) -> Self:
        least = (self.batch if self.grpo else 0) + self.reference_count
        if self.sampler.rollouts < least:
            raise ValueError(
                f"a budget of {self.sampler.rollouts} rollouts is less than one batch of "
                f"{self.batch} and {self.reference_count} reference trajectories"
                if self.reference_count
                else f"a budget of {self.sampler.rollouts} rollouts is less than one batch of "
                f"{self.batch}"
            )
        late = [count for count in self.checkpoints if count > self.sampler.rollouts]
        if late:
            raise ValueError(
                f"checkpoint {late[0]} is beyond the budget of {self.sampler.rollouts} rollouts"
            )
        return self

    @model_validator(mode="after")
    def _parts_hold_batches(self) -> Self:
        if self.rounds is None:
            return self
        if not self.grpo:
            raise ValueError("rounds diagnose GRPO's batches, and grpo is false; leave rounds out")
        if not any(pool.is_plain for pool in self.target_pools):
            raise ValueError(
                "rounds diagnose pools of the job's own environment, with its user and the reward "
                "verdict, and no pool that shall be learnt is one; leave rounds out"
            )
        if self.sampler.rollouts < self.rounds.count * self.batch:
            raise ValueError(
                f"{self.rounds.count} rounds of a budget of {self.sampler.rollouts} rollouts have "
                f"less than one batch of {self.batch} each; ask for fewer rounds"
            )
        return self

    @model_validator(mode="after")
    def _reads_reference(self) -> Self:
        if self.limits.kl is None and self.watch_reference and not self.algorithm.loss.kl.beta:
            raise ValueError(
                "watch_reference costs a forward pass per update, and without limits.kl and "
                "algorithm.loss.kl.beta nothing reads it"
            )
        return self


def _once(what: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{what}: {', '.join(twice[:3])}")
