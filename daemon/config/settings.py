"""Settings: declared once, composed from flags, environment, a TOML file and defaults.

Order: flags, `KINTSUGI_*`, files of secrets (named like the variables, in `$KINTSUGI_SECRETS`, else
in systemd's folder of the unit's credentials), TOML (`$KINTSUGI_CONFIG`, else `./kintsugi.toml`,
else `kintsugi.toml` in HOME), defaults. An unknown key in any of them is an error that names it.
Each setting is described in docs/configuration.md; a test compares that page with this module.
"""

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NestedSecretsSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from daemon.config.adapter_paths import FOLDER, PATHS_VARIABLE, AdapterPaths
from events.errors import KintsugiError
from events.gate import GateSettings
from producers.gateway.http.control_strings import FAMILIES, ControlTokens, list_control_strings
from producers.gateway.privacy.rules import BadRule, BuiltIn, find_builtin, own
from producers.gateway.privacy.rules import Rule as RuleInUse
from producers.gateway.routing.routes import SMALLEST_SHARE

if TYPE_CHECKING:
    from events.learning import Mode

PREFIX: Final = "KINTSUGI_"
CONFIG_VARIABLE: Final = "KINTSUGI_CONFIG"
SECRETS_VARIABLE: Final = "KINTSUGI_SECRETS"
_CREDENTIALS_VARIABLE: Final = "CREDENTIALS_DIRECTORY"
"""Variable with systemd's folder of the credentials that LoadCredential= names."""

_NO_SETTINGS: Final = frozenset(
    {
        CONFIG_VARIABLE, SECRETS_VARIABLE, PATHS_VARIABLE, "KINTSUGI_KAFKA_CACHE",
        "KINTSUGI_VLLM_CACHE",
    }
)  # fmt: skip
"""Variables of other code: places of the TOML file, secrets, a job's adapters, and ops' caches."""

_SERVICE_LINK: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP)(_\w+)?)?$")
"""Variables that Kubernetes sets for every service, one named kintsugi included."""


_LARGEST: Final = 1e12
"""Largest magnitude of a number: a terabyte, or more than any count; exact in double precision."""
_SMALLEST: Final = 1e-9
"""Smallest magnitude of a number other than 0: its square is no zero either."""
_LARGEST_BY_UNIT: Final[Mapping[str, float]] = {"seconds": 1e9, "minutes": 1e7}
"""Unit at the end of a setting's name -> largest value: thirty years, which every date holds."""


def _expand_path(path: Path) -> Path:
    return path.expanduser().absolute()


WholePath = Annotated[Path, AfterValidator(_expand_path)]
"""A path as a person writes it: expands `~`, and begins a relative path in the current folder."""


class ConfigurationError(KintsugiError):
    """A setting that cannot be used."""


class Section(BaseModel):
    """A nested group of settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        """Refuse numbers that overflow in computations with times, sizes or powers."""
        for name, value in self:
            largest = _LARGEST_BY_UNIT.get(name.rpartition("_")[2], _LARGEST)
            for number in value.values() if isinstance(value, dict) else (value,):
                if isinstance(number, int | float) and not _is_in_range(number, largest):
                    from daemon.config.job_ranges import show_number

                    raise ValueError(
                        f"{name} is {show_number(number)}, outside of its range, {_SMALLEST:g} to "
                        f"{largest:g}; correct it"
                    )
        return self


def _is_in_range(number: float, largest: float) -> bool:
    return number == 0 or _SMALLEST <= abs(number) <= largest


class KafkaSecurity(Section):
    """TLS and SASL of the Kafka client."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol of the brokers' listener."""
    ca_file: WholePath | None = None
    """PEM file of the authority that signed the brokers' certificates. Unset: the system's
    authorities."""
    certificate_file: WholePath | None = None
    """PEM file of this client's certificate, for brokers that ask for one."""
    key_file: WholePath | None = None
    """PEM file of that certificate's key."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """SASL mechanism; the SASL protocols need it, `username` and `password`."""
    username: str | None = None
    """User name by which the broker knows this client."""
    password: SecretStr | None = None
    """Password of that user. A secret."""


class Kafka(Section):
    """How to talk to the broker that `kafka_bootstrap_servers` names."""

    replication_factor: int = Field(default=1, ge=1, lt=2**15)
    """Replicas of each topic that kintsugi creates. Existing topics are not changed."""
    min_insync_replicas: int = Field(default=1, ge=1, lt=2**15)
    """Replicas that must acknowledge an event. Existing topics keep their number."""
    security: KafkaSecurity = KafkaSecurity()


class Log(Section):
    """The embedded log."""

    durability: Literal["power", "process"] = "power"
    """`power`: an acknowledged event survives a power cut. `process`: it survives the death of any
    process."""


WinnableKind = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}/.+$", max_length=256)]


class Environments(Section):
    """Where environments of your own are."""

    paths: Annotated[tuple[WholePath, ...], NoDecode] = ()
    """Python files, or folders of them, that define environments. kintsugi runs these files."""
    allow_winnable: tuple[WinnableKind, ...] = ()
    """Kinds of task, as `ENVIRONMENT/KIND`, that jobs and gates use although a cheater wins them.
    `kintsugi doctor` names such kinds."""

    @field_validator("paths", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.split(os.pathsep) if isinstance(value, str) and value else value or ()


class Key(Section):
    """A client of the gateway; `kintsugi key NAME` mints one and prints this."""

    name: str = Field(min_length=1, max_length=64)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 of the key, which itself is stored nowhere."""
    scopes: frozenset[Literal["call", "feedback", "trusted", "status"]] = frozenset(
        {"call", "feedback"}
    )


class Upstream(Section):
    """An engine behind the gateway."""

    url: str = Field(pattern="^https?://.+/v1/?$")
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    """A file that holds the key, for secrets that are mounted."""
    checkpoint: WholePath | None = None
    """Folder of the base that it serves, on this machine: what adapters are checked against."""
    max_loras: int | None = Field(default=None, ge=1)
    """The engine's own limit, as `max_cpu_loras` and `max_lora_rank`. None: the one that the engine
    reports, else vLLM's default."""
    max_cpu_loras: int | None = Field(default=None, ge=1)
    max_lora_rank: int | None = Field(default=None, ge=1)
    path_map: dict[WholePath, str] = Field(default_factory=dict)
    """Folder of this machine -> its path where the engine runs."""


class Gateway(Section):
    """The gateway beside the agent."""

    host: str = "127.0.0.1"
    """Address to listen on. An address other than loopback needs keys."""
    port: int = Field(default=8080, ge=0, lt=65536)
    """Port to listen on; 0: any free port."""
    alias: str = Field(default="agent", min_length=1, max_length=128)
    """Alias of the agent whose calls the gateway records."""
    capture: Literal["best_effort", "required"] = "best_effort"
    """Treatment of a call that cannot be written to disk. `best_effort`: it is answered, and the
    answer says that it was not recorded. `required`: it is refused."""
    keys: tuple[Key, ...] = ()
    """Keys of clients, as `kintsugi key` prints them."""
    timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest duration of a whole call, streamed or not, in seconds."""
    grace_seconds: int = Field(default=30, ge=1)
    """Seconds that calls in progress may take after the gateway is told to stop."""
    max_body_bytes: int = Field(default=32 << 20, ge=1024)
    """Largest body of a request, in bytes."""
    client_seconds: float = Field(default=60.0, gt=0)
    """Seconds in which a client must send a whole request, or read some of the data that waits for
    it."""
    feedback_per_minute: int = Field(default=600, ge=1)
    """Most requests to `/v1/feedback` per key and minute."""
    control_tokens: ControlTokens = "count"
    """Treatment of a call with a message that spells a control token. `count`: it is answered and
    counted. `refuse`: it is refused with status 400."""
    control_strings: tuple[str, ...] = Field(default=tuple(FAMILIES), max_length=256)
    """Control tokens to search messages for: names of model families, and strings."""

    @field_validator("control_strings")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        list_control_strings(names)
        return names

    def list_control_strings(self) -> tuple[str, ...]:
        """Return the control strings to look for."""
        return list_control_strings(self.control_strings)


class Lessons(Section):
    """Practice in repairing a call that failed."""

    visible: bool = False
    """Whether answers to clients contain the agent's reflections, `<reflect>...</reflect>`. The log
    always contains them."""


class Serving(Section):
    """Adapters in the engines."""

    adapters: WholePath | None = None
    """Folder of the adapters. Unset: `adapters` in HOME."""
    gateway_timeout_seconds: float = Field(default=30.0, gt=0)
    """Seconds without a report after which a gateway counts as gone. Nothing waits for it then."""
    max_session_age_seconds: float = Field(default=14400.0, gt=0)
    """Age in seconds from which a session that holds a retired adapter is moved."""
    missing: Literal["base", "refuse"] = "base"
    """Treatment of a call whose adapter no engine has. `base`: another policy of the route
    answers, and the base if there is none. `refuse`: the call is refused."""
    router_ms: int = Field(default=150, ge=1)
    """Milliseconds that the first call of a session waits for a panel's router. On a slow engine it
    waits twice the engine's median time to the first token. After that the base answers."""
    router_most_ms: int = Field(default=2000, ge=1)
    """Most milliseconds that a call waits for a router on a slow engine. A longer `router_ms`
    overrides it."""
    reroute: bool = False
    """Whether a router that was in doubt, failed or was late is asked once more when the user
    speaks again. A session that has a member keeps it."""
    grace_seconds: float = Field(default=3600.0, ge=0)
    """Seconds between unloading an adapter and deleting its files."""
    kept_versions: int = Field(default=3, ge=0)
    """Former policy versions of each alias whose files are kept for a rollback."""


class Canary(Section):
    """An adapter that passed its gate, on a part of the sessions."""

    shares: tuple[float, ...] = (0.05, 0.25)
    """Shares of the sessions that a canary answers, one after the other. The incumbent answers the
    rest."""
    risk_ratio: float = Field(default=1.25, gt=1)
    """Largest ratio of a canary's failure rate to the incumbent's with which it is promoted."""
    max_age_seconds: float = Field(default=86400.0, gt=0)
    """Seconds after which a canary without a decision ends."""
    holdout: float = Field(default=0.0, ge=0, le=0.5)
    """Share of an agent's sessions that the base always answers, to measure the gain since the
    first promotion; 0: none."""

    @field_validator("holdout")
    @classmethod
    def _check_holdout(cls, share: float) -> float:
        if 0 < share < SMALLEST_SHARE:
            raise ValueError(f"give 0 for none, or {SMALLEST_SHARE:f} or more")
        return share

    @field_validator("shares")
    @classmethod
    def _check_order(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        within = all(SMALLEST_SHARE <= share <= 1 - SMALLEST_SHARE for share in shares)
        if not (shares and within and list(shares) == sorted(set(shares))):
            raise ValueError(
                f"they must rise, from {SMALLEST_SHARE:f} to {1 - SMALLEST_SHARE:f}, and there "
                "must be one"
            )
        return shares


class Gate(GateSettings, Section):
    """The thresholds by which a candidate passes."""


class Trial(Section):
    """How a candidate and the incumbent are compared before the gate decides."""

    gain: float = Field(default=0.1, gt=0, lt=1)
    """Gain of pass^1 on the target that the trial must find with a power of 80 %."""
    trials: int = Field(default=4, ge=1, le=100)
    """Attempts at each task, by the candidate and by the incumbent."""
    pilot_tasks: int = Field(default=24, ge=2, le=1_000_000)
    """Tasks of each kind that the incumbent plays first. Their variance determines the number of
    tasks."""
    least_tasks: int = Field(default=64, ge=1, le=1_000_000)
    """Fewest tasks of each kind."""
    most_tasks: int = Field(default=512, ge=1, le=1_000_000)
    """Most tasks of each kind. A condition that they do not show counts as not met."""
    temperature: float = Field(default=1.0, ge=0, le=100)
    """Temperature at which tokens are sampled."""
    max_tokens: int = Field(default=512, ge=1, le=2**24)
    """Most tokens of one answer."""
    episodes: int = Field(default=64, ge=1, le=65_536)
    """Episodes that are played at the same time."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the models' weights."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads. Unset: torch decides."""


class Rule(Section):
    """A redaction rule of one's own."""

    name: str = Field(pattern="^[a-z][a-z0-9_]{0,39}$")
    """Name of the rule; `[redacted:NAME]` replaces what it matches."""
    pattern: str = Field(min_length=1, max_length=10_000)
    """Regular expression in the syntax of RE2."""


class Redaction(Section):
    """Texts that the gateway must not record."""

    rules: tuple[BuiltIn | Rule, ...] = ()
    """Built-in rules by name, custom rules by name and pattern."""

    @field_validator("rules")
    @classmethod
    def _usable(cls, rules: tuple[BuiltIn | Rule, ...]) -> tuple[BuiltIn | Rule, ...]:
        usable = _rules(rules)
        if twice := [
            name for name, count in Counter(rule.name for rule in usable).items() if count > 1
        ]:
            raise ValueError(f"two rules are called {twice[0]!r}; give one of them another name")
        return rules

    def build_rules(self) -> "tuple[RuleInUse, ...]":
        """Return the rules, ready to be used."""
        return _rules(self.rules)


class Sessions(Section):
    """Conversations."""

    idle_seconds: int = Field(default=1800, ge=1)
    """Seconds without a call after which a session is over."""


class Agent(Section):
    """An agent that is to be improved."""

    alias: str = Field(min_length=1, max_length=128)
    """The model name that its clients ask for."""
    environment: str | None = None
    """Environment in which its tasks are played: a name (kintsugi env ls), or the path of a file
    that defines one. Without one its traffic is recorded and nothing is trained; its sessions have
    no verdict, so none has a category."""
    checkpoint: WholePath | None = None
    """Folder of the base model's weights, where jobs read it."""
    traffic: dict[str, float] = {}
    """Kind of task -> its share of the agent's traffic. The gate examines each of these kinds by
    itself; empty: every kind of the environment, in equal shares."""

    @field_validator("traffic")
    @classmethod
    def _shares(cls, traffic: dict[str, float]) -> dict[str, float]:
        if any(not share > 0 for share in traffic.values()):
            raise ValueError("every kind of task that is named must have a share above 0")
        return traffic


class Engine(Section):
    """The embedded engine that `kintsugi up` starts where no upstream is configured."""

    model: WholePath | None = None
    """Folder of the model to serve. Unset: the first checkpoint of an agent."""
    name: str | None = None
    """Name of the model. Unset: its folder's name."""
    port: int = Field(default=8001, ge=1, lt=65536)
    """Port on the loopback address."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads. Unset: torch decides."""
    slots: int = Field(default=64, ge=1, le=65_536)
    """Most answers generated at the same time; further calls wait. Each slot has its part of the
    cache."""


class Scheduler(Section):
    """When a cycle is due."""

    min_rollouts: int = Field(default=200, ge=1)
    """Number of new rollouts that makes a cycle due."""
    min_priority: float = Field(default=1.0, gt=0)
    """Sum of the priorities of an agent's unresolved patterns that makes a cycle due."""
    max_age_seconds: float = Field(default=604800.0, gt=0)
    """Age of the last cycle, in seconds since its start, that makes the next one due."""
    cron: str = ""
    """Times, in UTC, at which a cycle is due: the five fields of crontab(5), or a word such as
    `@daily`; empty: none. 0 and 7 are Sunday. If a day of the month and a day of the week are
    given, either counts."""
    cron_days: Literal["unconfirmed", "crontab"] = "unconfirmed"
    """`crontab` confirms that `cron` means days as crontab(5) does. `unconfirmed`: `config check`
    and `doctor` warn of a schedule whose days an earlier version read differently."""
    min_failures: int = Field(default=8, ge=1)
    """Fewest new failures for a cycle that no person asked for."""
    cooldown_seconds: float = Field(default=600.0, ge=0)
    """Seconds between the end of a cycle and the next one, unless a person asks for it."""
    backoff: float = Field(default=2.0, ge=1, le=100)
    """Factor by which each cycle in a row that changed nothing multiplies `cooldown_seconds`,
    `min_failures` and `min_rollouts`. At most four such cycles count."""
    budget_minutes: float = Field(default=480.0, gt=0)
    """Minutes of training jobs per day (UTC) after which no cycle begins."""
    tick_seconds: float = Field(default=5.0, gt=0)
    """Seconds between two checks by the leader."""

    @field_validator("cron")
    @classmethod
    def _crontab(cls, cron: str) -> str:
        if cron:
            from daemon.config.crontab import read_crontab

            read_crontab(cron)
        return cron


class Ray(Section):
    """A Ray cluster that runs jobs."""

    address: str = "http://127.0.0.1:8265"
    """URL of the cluster's dashboard."""
    token: SecretStr | None = None
    """Token for a cluster that requires one. A secret."""
    python: str = "python"
    """Python interpreter with kintsugi[train] on the machines of the cluster."""
    cpus: float = Field(default=1.0, gt=0)
    """CPUs that a job reserves on the cluster."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs that a job reserves on the cluster; a fraction shares one."""


class Jobs(Section):
    """Training runs and trials of candidates."""

    runner: Literal["local", "ray"] = "local"
    """Place where training runs and trials run. `local`: processes on this machine; `ray`: a Ray
    cluster whose machines have the home under the same path."""
    ray: Ray = Ray()
    slots: int = Field(default=1, ge=1, le=1024)
    """Most training runs at the same time, and most trials at the same time."""
    attempts: int = Field(default=3, ge=1)
    """Number of successive attempts without a rollout after which an interrupted job has failed."""
    heartbeat_seconds: float = Field(default=120.0, gt=0)
    """Seconds without output after which a job is stopped and tried again."""
    minutes: float = Field(default=120.0, gt=0)
    """Minutes, over all attempts, after which a job is stopped and has failed."""

    @property
    def hands_keys(self) -> bool:
        """Whether a job gets persons' keys in memory, as `JobRunner.hands_keys`."""
        return self.runner == "local"


class Training(Section):
    """Settings of a cycle's training job."""

    rollouts: int = Field(default=3072, ge=1)
    """Most rollouts of a job."""
    rounds: int = Field(default=1, ge=1)
    """Equal parts of `rollouts`, each at least one batch. After each part except the last, the job
    diagnoses its own rollouts, writes up to `proposer.tasks` tasks for the failures, and changes
    its pools."""
    groups: int = Field(default=8, ge=1)
    """Tasks per update."""
    size: int = Field(default=8, ge=2)
    """Rollouts per task."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature at which tokens are sampled."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens of one answer."""
    momentum: float = Field(default=0.8, ge=0, lt=1)
    """Weight of the old value in a pool's moving pass rate, which its share follows."""
    algorithm: str = ""
    """Name of a published algorithm (docs/learner.md). Empty: `sentinel` with a stronger penalty
    for leaving the initial policy."""
    recipe: Literal["own", "published"] = "own"
    """Source of `groups`, `size`, `lr` and of the rank, scale and layers of adapters. `own`: these
    settings; `published`: the release of `algorithm` (`trace_paper`: 4 tasks, 16 rollouts each,
    1e-5, rank and alpha 16 on the four attention layers)."""
    kl: float = Field(default=0.1, ge=0)
    """Weight of the penalty for leaving the initial policy. A named `algorithm` has its own."""
    lr: float | None = Field(default=None, gt=0)
    """Learning rate. Unset: by the base's number of parameters, 2e-3 below 10 M, 1e-5 at 4 B
    (docs/learner.md)."""
    lora_rank: int = Field(default=16, ge=1, le=512)
    """Rank of adapters. Engines must be started with at least this rank."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """Scale of adapters: an adapter's change of the base is multiplied by alpha / rank."""
    probe_groups: int = Field(default=8, ge=1)
    """First groups of each pool, except replay, that show whether training on it can help."""
    probe_below: float = Field(default=0.2, ge=0, le=1)
    """Share of those groups with both passes and failures; training on a pool below it cannot
    help without a warm start."""
    warm_start: Literal["off", "auto", "always"] = "off"
    """Whether a job first trains on successes of the environment's oracle and the agent. `off`:
    never; `auto`: for pools below `probe_below`; `always`: for all pools."""
    warm_start_lr: float | None = Field(default=None, gt=0)
    """Learning rate of a warm start. Unset: by the base's number of parameters, 4e-3 below 10 M,
    1e-4 at 1 B (docs/learner.md)."""
    warm_start_epochs: int | None = Field(default=None, ge=1)
    """Epochs of a warm start. Unset: by the base's number of parameters, 4 below 10 M, 2 from
    1 B on."""
    references: int = Field(default=32, ge=1)
    """Most tasks of each target pool that a warm start shows, never more than half of the pool. The
    replay pools together show as many as the target pools."""
    references_most: float = Field(default=0.5, gt=0, lt=1)
    """Largest share of `rollouts` that all these references take, replay included. One batch is
    always left."""
    source: Literal["in_process", "vllm", "endpoint"] = "in_process"
    """Engine that plays the rollouts. `in_process`: the job itself; `vllm`: a vLLM that the job
    starts; `endpoint`: the engine at `endpoint`."""
    endpoint: str = Field(default="", pattern="^(https?://.+/v1)?$")
    """URL, ending in `/v1`, of an engine that also serves. It must see the folder of jobs."""
    requests_per_second: float = Field(default=4.0, gt=0)
    """Most requests per second to `endpoint`."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Device on which a job computes."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the base's weights in a job."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of a job. Unset: torch decides, and an adapter's sha256 is not reproducible."""

    @field_validator("algorithm")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name:
            from daemon.config.presets import PRESETS

            if name not in PRESETS:
                raise ValueError(f"there is none of this name; there are {', '.join(PRESETS)}")
        return name

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        from daemon.config.job_ranges import TRAINING

        for name, (low, high) in TRAINING.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(
                    f"{name} is {value!r}, outside of its range, {low!r} to {high!r}; correct it"
                )
        return self

    @model_validator(mode="after")
    def _check_recipe(self) -> Self:
        if self.recipe == "published":
            from daemon.config.presets import PRESETS

            known = [name for name, preset in PRESETS.items() if preset.recipe is not None]
            if self.algorithm not in known:
                raise ValueError(
                    f"recipe is published, and algorithm is {self.algorithm!r}, of which none is "
                    f"known; name one of {', '.join(known)}, or leave recipe out"
                )
        return self


class Model(Section):
    """A model at an OpenAI-compatible endpoint."""

    url: str = Field(default="", pattern="^(https?://.+)?$")
    """URL of an OpenAI-compatible endpoint, ending in `/v1`; empty: no model is asked."""
    model: str = Field(default="default", min_length=1, max_length=128)
    """Name of the model at that endpoint."""
    api_key: SecretStr | None = None
    """API key of that endpoint. A secret."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts besides this machine to which requests may be sent."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Seconds to wait for one answer."""
    max_tokens: int = Field(default=200_000, ge=1)
    """Most tokens per cycle, read and written, by a high estimate."""


class ProposerModel(Model):
    """A model that writes plans and tasks."""

    max_tokens: int = Field(default=4_000_000, ge=1)
    """Most tokens per cycle, read and written, by a high estimate. The default is enough for 32
    tasks of three tries each and 64 plans."""
    minutes: float = Field(default=240.0, gt=0)
    """Most minutes per cycle that the role `schedule` waits for this model. After that, templates
    and rules write the rest of the cycle's tasks."""


class UserModel(Model):
    """A model that plays the user."""

    max_tokens: int = Field(default=1_000_000_000, ge=1)
    """Most tokens, read and written, by a high estimate: for the probes of a cycle, for each job
    and for each look of a gate. The default is enough for about 25,000 conversations of ten
    turns."""
    minutes: float = Field(default=240.0, gt=0)
    """Most minutes for the probes of a cycle. After that, tasks without a probe are rejected. Jobs
    and gates have limits of their own."""
    temperature: float = Field(default=0.7, ge=0, le=2)
    """Temperature at which the user's lines are sampled."""
    line_tokens: int = Field(default=512, ge=1)
    """Most tokens of one line, including its calls."""
    candidates: int = Field(default=1, ge=1, le=16)
    """Lines that are sampled for each turn. Lines that break a rule for users are dropped, and the
    model names the best of the rest. If it names none, the first is used."""


class Models(Section):
    """Models that are asked, each for its own role; one endpoint may be named for several."""

    analyzer: Model = Model()
    proposer: ProposerModel = ProposerModel()
    user: UserModel = UserModel()


class Proposer(Section):
    """The writer of tasks for failure patterns."""

    tasks: int = Field(default=32, ge=1, le=100_000)
    """Most tasks that are written per cycle."""
    explore: float = Field(default=0.75, ge=0, le=1)
    """Share of these tasks that are fresh tasks similar to the failed ones. The others are the
    failed tasks in other words."""
    targeted_step: float = Field(default=0.1, gt=0, le=1)
    """Share of written tasks in the job of an agent's first cycle. Each cycle adds as much, up to
    `targeted_most`."""
    targeted_most: float = Field(default=0.5, gt=0, le=1)
    """Largest share of written tasks in a job. The other tasks are from the agent's traffic."""
    replay: float = Field(default=0.05, ge=0, lt=1)
    """Share of a job's tasks that are written tasks without need: the agent passes them, or their
    pattern has no priority."""
    siblings: float = Field(default=0.5, ge=0, le=1)
    """Share of siblings in the traffic's part of a job. Siblings ask for something else in nearly
    the words of failed tasks; training damages them first."""
    operator: float = Field(default=0.1, ge=0, lt=1)
    """Share of a job's tasks that an operator added without a failure pattern. It applies while
    some of them are not passed."""
    probe: bool = True
    """Whether the current policy plays each written task eight times, at an engine that the
    scheduler knows. Tasks that it always or never passes teach little."""


NO_HEAD_REMEDY: Final = (
    'have cycles train their routers otherwise: improve.skills_router = "trained"'
)
"""The remedy that errors name where an engine serves no adapters of a model's head."""


class Improve(Section):
    """Settings of what a cycle practises beside tasks like the failed ones."""

    lessons: Literal["off", "auto"] = "off"
    """Training to repair a call that a tool refused. `auto`: a cycle writes lessons for failure
    patterns with refused calls, its job draws them, and the gate plays tasks that begin after a
    refused call (docs/lessons.md)."""
    skills: Literal["off", "watch", "panel"] = "off"
    """Skills that successes show and failures lack (docs/skills.md). `watch`: a cycle compares
    failures with successes and names these skills. `panel`: a cycle also trains an adapter for each
    of them; the adapters that pass answer together."""
    skills_rounds: Annotated[int, Field(ge=1)] = 4
    """Rounds with judged rollouts of an agent after which a cycle compares again. It reads all
    rounds since the last comparison, which should hold at least a hundred rollouts."""
    skills_jobs: Annotated[int, Field(ge=1)] = 4
    """Most skills that one cycle trains for. It takes those with the largest contrast."""
    skills_router: Literal["labels", "trained", "head"] = "trained"
    """Router of a panel. `labels`: the base, by a prompt; `trained`: an adapter that a job of the
    cycle trains on that prompt; `head`: a linear head on the base's last hidden state of the
    session's own prompt, which such a job fits in seconds."""
    skills_labels: Literal["rules", "analyzer"] = "rules"
    """Labeller that names candidate skills and labels rollouts. `rules`: fixed rules; `analyzer`:
    the model of `models.analyzer`, which labels each rollout ten times. Rollouts of persons are
    not sent to it."""
    skills_rollouts: Annotated[int, Field(ge=1)] = 128
    """Most rollouts that the analyzer labels. Half are the newest failures and half the newest
    successes, if there are enough of each."""
    skills_tokens: Annotated[int, Field(ge=1)] = 8_000_000
    """Most tokens, read and written, of one comparison by the analyzer, by a high estimate."""
    skills_minutes: Annotated[float, Field(gt=0)] = 60.0
    """Most minutes that the role `schedule` waits for a comparison by the analyzer. After that, the
    cycle continues without it."""
    synthesis: Literal["off", "auto", "always"] = "off"
    """Whether plans write tasks; failures revise the plans (docs/proposing.md). `auto`: for a
    failure pattern if the checks rejected at least half of the tasks that the previous cycle wrote
    for it; `always`: for every pattern."""
    synthesis_plans: Annotated[int, Field(ge=1, le=64)] = 64
    """Most plans of a set. The writer of a plan sees the earlier ones, so that their tasks
    differ."""
    synthesis_rounds: Annotated[int, Field(ge=0, le=3)] = 3
    """Most rounds in which failures revise the plans of a set; 0: no revision."""
    users: Literal["script", "model", "trained"] = "script"
    """Player of the users in simulated dialogues: in jobs, in probes, and in gates for candidate
    and incumbent alike (docs/users.md). `script`: the environment's own user; `model`: the model
    of `models.user`; `trained`: an adapter that a job trains on accepted dialogues and that answers
    no client. Until it has passed its gate, the script plays."""
    users_dialogues: Annotated[int, Field(ge=1, le=16_384)] | None = None
    """Most dialogues from which a job learns to play users: recorded ones, the newest first, then
    those of the environment's oracle. Unset: by the size of the base, 8192 up to 10 M parameters,
    512 from 1 B on, and twice as many if it continues an adapter in all manners. At most 16384,
    because a request names each."""
    users_candidates: Annotated[int, Field(ge=1, le=16)] = 1
    """Candidates from which an adapter that plays users chooses each line: the most likely line,
    and sampled ones. If it names none, the most likely line is used."""

    @property
    def trains_chooser(self) -> bool:
        """Whether the chooser of a version with members is an adapter of its own."""
        return self.skills_router != "labels"

    def writes(self, mode: "Mode") -> bool:
        """Return whether cycles may write tasks of a mode: the modes of methods have a switch."""
        switches = {"repair": self.lessons, "synthesize": self.synthesis}
        return switches.get(mode, "on") != "off"


class Metrics(Section):
    """Where the roles other than the gateway answer `GET /metrics`."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int | None = Field(default=None, ge=1, le=65531)
    """Port of `consume`; `ship`, `schedule`, `work` and `trace` take the next four. Unset: no port
    is opened."""


class Tracing(Section):
    """The receiver to which `kintsugi trace` sends spans."""

    endpoint: str = Field(default="", pattern="^(https?://.+)?$")
    """URL, with its path (`/v1/traces`), to which spans are posted as OTLP; empty: no span is
    sent."""
    headers: dict[str, SecretStr] = {}
    """HTTP headers that are sent with the spans, such as a key or a project. Secret."""
    compression: Literal["none", "gzip"] = "none"
    """Compression of the requests with spans. The receiver must support `gzip`."""
    content: bool = False
    """Whether spans contain the texts of calls."""


class Privacy(Section):
    """Protection of personal data (docs/privacy.md)."""

    seal: bool = True
    """Whether a person's texts are encrypted with a key of that person."""
    keys_url: SecretStr | None = None
    """Database of these keys. Unset: SQLite in HOME. Secret because it may hold a password."""

    @field_validator("keys_url", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        return None if value == "" else value


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,  # --debug prints them, and an input may be a key
    )

    home: WholePath = Path("~/.local/share/kintsugi")
    """Folder for the embedded log, database, blobs, adapters and reports."""
    database_url: SecretStr | None = None
    """Projection database. Unset: SQLite in HOME. Secret because it may hold a password."""
    kafka_bootstrap_servers: str = ""
    """Kafka brokers, as `host:port,host:port`; empty: only the embedded log is used."""
    benchmarks: WholePath | None = None
    """Folder of real benchmark data, which environments need for their real tasks."""
    environments: Environments = Environments()
    upstreams: tuple[Upstream, ...] = ()
    """Engines behind the gateway."""
    engine: Engine = Engine()
    agents: tuple[Agent, ...] = ()
    """Agents that are to be improved."""
    scheduler: Scheduler = Scheduler()
    models: Models = Models()
    proposer: Proposer = Proposer()
    improve: Improve = Improve()
    jobs: Jobs = Jobs()
    training: Training = Training()
    gateway: Gateway = Gateway()
    lessons: Lessons = Lessons()
    redaction: Redaction = Redaction()
    privacy: Privacy = Privacy()
    sessions: Sessions = Sessions()
    serving: Serving = Serving()
    gate: Gate = Gate()
    trial: Trial = Trial()
    canary: Canary = Canary()
    kafka: Kafka = Kafka()
    log: Log = Log()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()

    @field_validator("home", mode="before")
    @classmethod
    def _empty_is_default(cls, value: Any) -> Any:
        return cls.model_fields["home"].default if value == "" else value

    @field_validator("database_url", "benchmarks", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("home")
    @classmethod
    def _check_home(cls, path: Path) -> Path:
        if path == Path(path.anchor):
            raise ValueError("the root of the file system cannot be a home; name a folder in it")
        return path

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order flags, environment, secrets and TOML; a .env file would be one place too many."""
        toml = TomlConfigSettingsSource(settings_cls, config_file(init_settings().get("home")))
        return init_settings, env_settings, _secrets(settings_cls), toml

    @property
    def shows_asides(self) -> bool:
        """Whether clients get an agent's asides with its answer."""
        return self.lessons.visible

    @property
    def adapters(self) -> Path:
        """Folder of the adapters."""
        return self.serving.adapters or self.home / FOLDER

    @property
    def adapter_paths(self) -> AdapterPaths:
        """Paths of adapters in events and on this machine."""
        return AdapterPaths(self.home, self.adapters)

    @property
    def engine_checkpoint(self) -> Path | None:
        """Folder of the model that this home's own engine serves."""
        checkpoints = (agent.checkpoint for agent in self.agents if agent.checkpoint is not None)
        return self.engine.model or next(checkpoints, None)

    def find_agent(self, alias: str) -> Agent | None:
        """Return the entry of an agent, or None."""
        return next((agent for agent in self.agents if agent.alias == alias), None)

    @property
    def environment_places(self) -> tuple[str, ...]:
        """Environments of the agents' tasks: names and paths, which an event may name too."""
        return tuple(agent.environment for agent in self.agents if agent.environment is not None)

    @property
    def database(self) -> str:
        """The database's URL."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        from consumers.database import sqlite_url  # SQLAlchemy: only where the database is used

        return sqlite_url(self.home / "kintsugi.db")

    @property
    def keys(self) -> str:
        """The URL of the key store."""
        if self.privacy.keys_url is not None:
            return self.privacy.keys_url.get_secret_value()
        from consumers.database import sqlite_url

        return sqlite_url(self.home / "keys.db")


@dataclass(frozen=True, slots=True)
class Origin:
    """A setting, its value, and the source of that value."""

    setting: str
    """Dotted name, as in TOML."""
    variable: str
    value: Any
    """JSON; a secret is starred out."""
    origin: str
    """`flag`, `environment`, the path of the secrets or of the TOML file, or `default`."""


def config_file(home: str | Path | None = None) -> Path | None:
    """Return the TOML file in force, or None. `home` is the flag's value."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        path = Path(named).expanduser().absolute()
        if not path.is_file():
            raise ConfigurationError(
                f"{CONFIG_VARIABLE} names {path}, which is no file; unset it or write the file"
            )
        return path
    folder = home or os.environ.get(f"{PREFIX}HOME") or Settings.model_fields["home"].default
    for path in (Path("kintsugi.toml"), Path(folder).expanduser() / "kintsugi.toml"):
        if path.is_file():
            return path.absolute()
    return None


def secrets_folder() -> Path | None:
    """Return the folder whose files are settings, each named like a variable; None without one."""
    named = os.environ.get(SECRETS_VARIABLE)
    if named:
        path = Path(named).expanduser().absolute()
        if not path.is_dir():
            raise ConfigurationError(
                f"{SECRETS_VARIABLE} names {path}, which is no folder; unset it or mount the "
                "secrets there"
            )
        return path
    loaded = os.environ.get(_CREDENTIALS_VARIABLE)
    return Path(loaded) if loaded and Path(loaded).is_dir() else None


def load(**flags: Any) -> Settings:
    """Return the settings in force; `flags` that are None are unset."""
    options = _drop_unset(flags)
    _refuse_unknown("environment variable", os.environ)
    folder = secrets_folder()
    if folder is not None:
        # Other files may lie there too, as the key that an upstream's api_key_file names.
        _refuse_unknown(f"file of secrets in {folder}", [file.name for file in folder.iterdir()])
    try:
        return Settings(**options)
    except ValidationError as error:
        raise ConfigurationError(_explain(error)) from error
    except SettingsError as error:
        raise ConfigurationError(
            f"{error}; a list or a table in a variable is written as JSON"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigurationError(
            f"{config_file(options.get('home'))} cannot be read as TOML: {error}; correct the file"
        ) from error


def origins(**flags: Any) -> list[Origin]:
    """Return every setting with its value and its origin, in the order of declaration."""
    settings = load(**flags)
    options = _drop_unset(flags)
    file = config_file(options.get("home"))
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("flag", options),
        ("environment", EnvSettingsSource(Settings)()),
        (str(secrets_folder()), _secrets(Settings)()),
        (str(file), TomlConfigSettingsSource(Settings, file)() if file else {}),
    ]
    return [
        Origin(name, variable(name), _dump_value(settings, name), _origin(name, layers))
        for name in names()
    ]


def _origin(name: str, layers: list[tuple[str, Mapping[str, Any]]]) -> str:
    return next(
        (origin for origin, layer in layers if _find_value(layer, name) is not None), "default"
    )


def names(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every setting, in the order of declaration."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from names(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.replace(".", "__").upper()


def _rules(rules: "tuple[BuiltIn | Rule, ...]") -> "tuple[RuleInUse, ...]":
    """Return the compiled redaction rules. Raise ValueError, which pydantic reports, for a bad
    pattern."""
    try:
        return tuple(
            find_builtin(rule) if isinstance(rule, str) else own(rule.name, rule.pattern)
            for rule in rules
        )
    except BadRule as error:
        raise ValueError(str(error)) from error


def _drop_unset(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _find_value(values: Any, name: str) -> Any:
    for part in name.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _dump_value(settings: Settings, name: str) -> Any:
    return _find_value(settings.model_dump(mode="json"), name)


def _secrets(settings: type[BaseSettings]) -> PydanticBaseSettingsSource:
    return NestedSecretsSettingsSource(
        SecretsSettingsSource(settings), secrets_dir=secrets_folder()
    )


def _refuse_unknown(what: str, entries: Iterable[str]) -> None:
    """Raise ConfigurationError for an entry with the settings' prefix that names no setting."""
    known = {variable(setting) for setting in names()}
    sections = {variable(setting.rsplit(".", 1)[0]) for setting in names() if "." in setting}
    for name in sorted(entries):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in known | sections | _NO_SETTINGS:
            continue
        if _SERVICE_LINK.search(upper):
            continue
        raise ConfigurationError(f"{what} {name} is no setting; {_nearest(upper)}")


def _nearest(upper: str) -> str:
    close = get_close_matches(upper, [variable(name) for name in names()], n=1)
    return f"did you mean {close[0]}?" if close else "unset it, or see docs/configuration.md"


def _explain(error: ValidationError) -> str:
    """Describe the first problem. The value is left out where it may be a secret."""
    problem = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        close = get_close_matches(name, list(names()), n=1)
        remedy = f"did you mean {close[0]}?" if close else "remove it, or see docs/configuration.md"
        return f"setting {name} is unknown; {remedy}"
    message = problem["msg"].removeprefix("Value error, ")
    # The input of an engine's problem may be the whole entry, its key included.
    starts = ("database_url", "privacy.keys_url", "upstreams", "tracing.headers")
    if not name:  # of several settings, which the message names
        return f"{message}; see docs/configuration.md"
    secret = "password" in name or name.endswith("api_key") or name.startswith(starts)
    value = "" if secret else f" (got {str(problem.get('input'))[:80]!r})"
    return f"setting {name}: {message}{value}; see docs/configuration.md"
