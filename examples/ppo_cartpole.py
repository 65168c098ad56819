#!/usr/bin/env python3
"""PPO on CartPole, spread over the nodes of a gang with Ray. Needs only numpy and ray.

A small but real training run, to show and test what Gangline does for large ones:

* one rollout actor per node (placement group STRICT_SPREAD), each holding the GPUs of its node.
  The arithmetic is numpy; the GPUs are only claimed, so that their ids can be seen in the log;
* the learner is this process, the Ray driver. It sends the weights to the actors, receives their
  samples, does the PPO update and writes one `step:N - key:value - ...` line per step;
* checkpoints are `global_step_N/` plus `latest_checkpointed_iteration.txt`, the layout of verl.
  A run that finds one goes on from it.

Every random number comes from (seed, step, stream) and a checkpoint holds the state of the
environments too, so a run that was interrupted and resumed takes the same course as one that was not.

Exit codes: 0 trained (or nothing left to do), 2 wrong usage, 3 the return did not rise.
Anything else that goes wrong ends in a Python traceback and exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections import deque
from pathlib import Path

# One thread per process: the matrices are tiny, and threads would only fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

# --- Hyperparameters -------------------------------------------------------------------------

ENVS_PER_ACTOR = 16
ROLLOUT_LENGTH = 128  # environment steps per actor, environment and training step
HIDDEN = 32
DISCOUNT = 0.99
GAE_LAMBDA = 0.95
# Rewards are scaled so that the value of balancing for ever is 1: an easy target for the critic.
REWARD_SCALE = 1.0 - DISCOUNT
CLIP = 0.2
ENTROPY_WEIGHT = 0.005
EPOCHS = 6
MINIBATCH = 512
LEARNING_RATE = 3e-3
MAX_GRAD_NORM = 1.0

RETURN_WINDOW = 50  # `reward/mean` is the mean return of this many finished episodes
SMALL_RUN = 20  # runs of fewer steps are not judged by their return
MIN_RISE = 2.0  # a run passes when its return has grown at least by this factor
EXIT_NO_RISE = 3

LATEST = "latest_checkpointed_iteration.txt"
LEARNER_STREAM = 1_000_000  # random stream of the learner; the actors use their rank


def random_stream(seed: int, step: int, stream: int) -> np.random.Generator:
    """A generator that depends on nothing but its arguments, and so survives a restart."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(step, stream)))


# --- Environment -----------------------------------------------------------------------------


class CartPoles:
    """A row of independent cart-pole systems (Barto, Sutton and Anderson, 1983), stepped together.

    A state is (cart position m, cart velocity m/s, pole angle rad, pole angular velocity rad/s).
    Each step is worth a reward of 1. An episode terminates when the cart or the pole leaves its
    limits, and is truncated after `MAX_STEPS` steps.
    """

    GRAVITY = 9.8
    CART_MASS = 1.0
    POLE_MASS = 0.1
    HALF_LENGTH = 0.5
    FORCE = 10.0
    TIME_STEP = 0.02
    MAX_POSITION = 2.4
    MAX_ANGLE = np.deg2rad(12.0)
    MAX_STEPS = 500

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.state = self._fresh(count, rng)
        self.age = np.zeros(count, dtype=np.int64)

    @staticmethod
    def _fresh(count: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(-0.05, 0.05, size=(count, 4))

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"state": self.state.copy(), "age": self.age.copy()}

    def restore(self, snapshot: dict[str, np.ndarray]) -> None:
        self.state = snapshot["state"].copy()
        self.age = snapshot["age"].copy()

    def step(self, push_right: np.ndarray, rng: np.random.Generator):
        """Advance every system and start new episodes where one ended.

        Returns (state reached, terminated, truncated, returns of the episodes that ended). The
        state reached is the one before a new episode replaced it.
        """
        position, velocity, angle, spin = self.state.T
        force = np.where(push_right, self.FORCE, -self.FORCE)
        total_mass = self.CART_MASS + self.POLE_MASS
        sin, cos = np.sin(angle), np.cos(angle)

        # Equations of motion of a frictionless cart with a uniform pole.
        push = (force + self.POLE_MASS * self.HALF_LENGTH * spin**2 * sin) / total_mass
        inertia = self.HALF_LENGTH * (4.0 / 3.0 - self.POLE_MASS * cos**2 / total_mass)
        spin_rate = (self.GRAVITY * sin - cos * push) / inertia
        acceleration = push - self.POLE_MASS * self.HALF_LENGTH * spin_rate * cos / total_mass

        rates = np.stack([velocity, acceleration, spin, spin_rate], axis=1)
        reached = self.state + self.TIME_STEP * rates
        self.age += 1

        terminated = (np.abs(reached[:, 0]) > self.MAX_POSITION) | (np.abs(reached[:, 2]) > self.MAX_ANGLE)
        truncated = ~terminated & (self.age >= self.MAX_STEPS)
        ended = terminated | truncated
        returns = self.age[ended].astype(float)  # a reward of 1 per step

        self.state = reached.copy()
        self.state[ended] = self._fresh(int(ended.sum()), rng)
        self.age[ended] = 0
        return reached, terminated, truncated, returns


# --- Networks: one hidden layer each for the policy and for the value --------------------------

Params = dict[str, np.ndarray]


def new_params(rng: np.random.Generator) -> Params:
    params: Params = {}
    # The policy starts near "both actions alike", hence the small scale of its last layer.
    for net, last_scale in (("policy", 0.01), ("value", 1.0)):
        params[f"{net}/w0"] = rng.normal(0.0, 0.5, size=(4, HIDDEN))
        params[f"{net}/b0"] = np.zeros(HIDDEN)
        params[f"{net}/w1"] = rng.normal(0.0, last_scale / np.sqrt(HIDDEN), size=(HIDDEN, 1))
        params[f"{net}/b1"] = np.zeros(1)
    return params


def forward(params: Params, net: str, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (hidden activations, one output per state)."""
    hidden = np.tanh(states @ params[f"{net}/w0"] + params[f"{net}/b0"])
    return hidden, (hidden @ params[f"{net}/w1"] + params[f"{net}/b1"])[:, 0]


def backward(params: Params, net: str, states: np.ndarray, hidden: np.ndarray, d_out: np.ndarray) -> Params:
    """Gradients of the loss by the parameters of `net`, given those by its outputs."""
    column = d_out[:, None]
    d_hidden = (column @ params[f"{net}/w1"].T) * (1.0 - hidden**2)
    return {
        f"{net}/w0": states.T @ d_hidden,
        f"{net}/b0": d_hidden.sum(axis=0),
        f"{net}/w1": hidden.T @ column,
        f"{net}/b1": column.sum(axis=0),
    }


# The policy has one output, the logit of "push right": P(right) = sigmoid(logit).


def log_prob(logit: np.ndarray, right: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0.0, np.where(right, -logit, logit))


def sigmoid(logit: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -logit))


# --- Rollouts ----------------------------------------------------------------------------------


@ray.remote
class RolloutActor:
    """Plays `ENVS_PER_ACTOR` environments on one node with the weights it is given."""

    def __init__(self, rank: int, seed: int, snapshot: dict[str, np.ndarray] | None) -> None:
        self.rank = rank
        self.seed = seed
        self.envs = CartPoles(ENVS_PER_ACTOR, random_stream(seed, 0, rank))
        if snapshot is not None:
            self.envs.restore(snapshot)

    def whereabouts(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "node": ray.get_runtime_context().get_node_id(),
            "ip": ray.util.get_node_ip_address(),
            "gpus": ",".join(sorted(str(gpu) for gpu in ray.get_gpu_ids())) or "none",
            "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES", "unset"),
            "pid": os.getpid(),
        }

    def rollout(self, params: Params, step: int) -> dict[str, object]:
        """Play `ROLLOUT_LENGTH` steps and return the samples with their advantages."""
        rng = random_stream(self.seed, step, self.rank)
        states, actions, log_probs, reached, terminated, ended = [], [], [], [], [], []
        episode_returns: list[float] = []
        for _ in range(ROLLOUT_LENGTH):
            state = self.envs.state
            _, logit = forward(params, "policy", state)
            right = rng.random(ENVS_PER_ACTOR) < sigmoid(logit)
            next_state, term, trunc, returns = self.envs.step(right, rng)
            states.append(state)
            actions.append(right)
            log_probs.append(log_prob(logit, right))
            reached.append(next_state)
            terminated.append(term)
            ended.append(term | trunc)
            episode_returns.extend(returns.tolist())

        shape = (ROLLOUT_LENGTH, ENVS_PER_ACTOR)
        all_states = np.concatenate(states)
        values = forward(params, "value", all_states)[1].reshape(shape)
        # A truncated episode would have gone on: its last state keeps its value. A terminated one
        # is worth nothing any more.
        next_values = forward(params, "value", np.concatenate(reached))[1].reshape(shape)
        next_values = np.where(np.array(terminated), 0.0, next_values)
        advantages = generalized_advantages(values, next_values, np.array(ended))
        return {
            "states": all_states,
            "actions": np.concatenate(actions),
            "log_probs": np.concatenate(log_probs),
            "advantages": advantages.ravel(),
            "value_targets": (advantages + values).ravel(),
            "episode_returns": episode_returns,
            "snapshot": self.envs.snapshot(),
        }


def generalized_advantages(values: np.ndarray, next_values: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Generalized advantage estimation (Schulman et al., 2016); all arrays are (time, environment)."""
    surprise = REWARD_SCALE + DISCOUNT * next_values - values
    advantages = np.empty_like(values)
    following = np.zeros(values.shape[1])
    for t in range(len(values) - 1, -1, -1):
        following = surprise[t] + DISCOUNT * GAE_LAMBDA * np.where(ended[t], 0.0, following)
        advantages[t] = following
    return advantages


# --- Learner -----------------------------------------------------------------------------------


class Learner:
    """The weights, the Adam optimizer and the PPO update."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.params = new_params(random_stream(seed, 0, LEARNER_STREAM))
        self.mean = {name: np.zeros_like(value) for name, value in self.params.items()}
        self.square = {name: np.zeros_like(value) for name, value in self.params.items()}
        self.updates = 0

    def train(self, batch: dict[str, np.ndarray], step: int) -> dict[str, float]:
        """One PPO step: several passes over the batch in shuffled minibatches; returns statistics."""
        rng = random_stream(self.seed, step, LEARNER_STREAM)
        size = len(batch["actions"])
        stats: list[dict[str, float]] = []
        for _ in range(EPOCHS):
            for chosen in np.array_split(rng.permutation(size), max(1, size // MINIBATCH)):
                grads, stat = ppo_gradients(self.params, {key: array[chosen] for key, array in batch.items()})
                stat["actor/grad_norm"] = self._apply(grads)
                stats.append(stat)
        return {key: float(np.mean([stat[key] for stat in stats])) for key in stats[0]}

    def _apply(self, grads: Params, beta1: float = 0.9, beta2: float = 0.999) -> float:
        """One Adam step on clipped gradients; returns their norm before clipping."""
        norm = float(np.sqrt(sum(np.sum(grad**2) for grad in grads.values())))
        scale = min(1.0, MAX_GRAD_NORM / (norm + 1e-12))
        self.updates += 1
        rate = LEARNING_RATE * np.sqrt(1.0 - beta2**self.updates) / (1.0 - beta1**self.updates)
        for name, grad in grads.items():
            grad = grad * scale
            self.mean[name] = beta1 * self.mean[name] + (1.0 - beta1) * grad
            self.square[name] = beta2 * self.square[name] + (1.0 - beta2) * grad**2
            self.params[name] = self.params[name] - rate * self.mean[name] / (np.sqrt(self.square[name]) + 1e-8)
        return norm


def ppo_gradients(params: Params, batch: dict[str, np.ndarray]) -> tuple[Params, dict[str, float]]:
    """Gradients of (clipped policy loss - entropy bonus) and of the value loss, with statistics."""
    states, right, size = batch["states"], batch["actions"], len(batch["actions"])
    advantages = batch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    hidden, logit = forward(params, "policy", states)
    prob = sigmoid(logit)
    log_ratio = log_prob(logit, right) - batch["log_probs"]
    ratio = np.exp(log_ratio)
    entropy = np.logaddexp(0.0, logit) - logit * prob

    # The surrogate is flat where the ratio already went past the clip in the rewarded direction.
    past_clip = np.where(advantages > 0.0, ratio > 1.0 + CLIP, ratio < 1.0 - CLIP)
    surrogate = np.minimum(ratio * advantages, np.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantages)
    d_surrogate = np.where(past_clip, 0.0, ratio * advantages) * (right - prob)
    d_entropy = -logit * prob * (1.0 - prob)
    d_logit = -(d_surrogate + ENTROPY_WEIGHT * d_entropy) / size

    value_hidden, value = forward(params, "value", states)
    error = value - batch["value_targets"]

    grads = backward(params, "policy", states, hidden, d_logit)
    grads.update(backward(params, "value", states, value_hidden, error / size))
    return grads, {
        "actor/pg_loss": -float(surrogate.mean()),
        "actor/entropy": float(entropy.mean()),
        "actor/ppo_kl": -float(log_ratio.mean()),
        "actor/pg_clipfrac": float(past_clip.mean()),
        "critic/vf_loss": 0.5 * float(np.mean(error**2)),
    }


# --- Checkpoints -------------------------------------------------------------------------------


def flush_to_disk(path: Path) -> None:
    """fsync a file or a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def save_checkpoint(root: Path, step: int, arrays: Params, meta: dict[str, object], keep: int) -> Path:
    """Write `global_step_N` and point `latest_checkpointed_iteration.txt` at it, both atomically.

    Whoever reads at any moment, also after a crash at any moment, finds a complete checkpoint.
    """
    final = root / f"global_step_{step}"
    partial = root / f".partial_global_step_{step}"
    shutil.rmtree(partial, ignore_errors=True)  # left by a run that was killed while saving
    partial.mkdir(parents=True)
    np.savez(partial / "state.npz", **arrays)
    (partial / "meta.json").write_text(json.dumps(meta))
    for path in (partial / "state.npz", partial / "meta.json", partial):
        flush_to_disk(path)
    # A directory of this step can only be one that was never pointed at: see `Training.save`.
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    flush_to_disk(root)

    pointer = root / f".partial_{LATEST}"
    pointer.write_text(str(step))
    flush_to_disk(pointer)
    pointer.replace(root / LATEST)
    flush_to_disk(root)

    # Newer directories than this one were never pointed at; they are replaced when reached again.
    steps = sorted(int(path.name.rpartition("_")[2]) for path in root.glob("global_step_*"))
    for old in [number for number in steps if number <= step][:-keep]:
        shutil.rmtree(root / f"global_step_{old}")
    return final


def latest_checkpoint(root: Path) -> Path | None:
    try:
        step = int((root / LATEST).read_text())
    except FileNotFoundError:
        return None
    return root / f"global_step_{step}"


# --- The training run ----------------------------------------------------------------------------


class Training:
    """Everything that a checkpoint holds: learner, environments, episode returns and the step."""

    def __init__(self, seed: int) -> None:
        self.learner = Learner(seed)
        self.step = 0
        self.saved_step = 0
        self.env_steps = 0
        self.recent: deque[float] = deque(maxlen=RETURN_WINDOW)
        self.start_return: float | None = None  # `reward/mean` of the very first step
        self.snapshots: list[dict[str, np.ndarray]] = []  # environments, by rank

    @property
    def mean_return(self) -> float | None:
        return float(np.mean(self.recent)) if self.recent else None

    def save(self, root: Path, keep: int) -> None:
        """Write a checkpoint, unless the newest one is of this very step."""
        if self.saved_step == self.step:
            return
        arrays: Params = {}
        for group, params in (("p", self.learner.params), ("m", self.learner.mean), ("v", self.learner.square)):
            arrays.update({f"{group}/{name}": value for name, value in params.items()})
        for rank, snapshot in enumerate(self.snapshots):
            arrays.update({f"env{rank}/{name}": value for name, value in snapshot.items()})
        meta = {
            "step": self.step,
            "seed": self.learner.seed,
            "updates": self.learner.updates,
            "env_steps": self.env_steps,
            "recent_returns": list(self.recent),
            "start_return": self.start_return,
            "actors": len(self.snapshots),
        }
        path = save_checkpoint(root, self.step, arrays, meta, keep)
        self.saved_step = self.step
        say(f"checkpoint saved: {path}")

    def load(self, path: Path) -> None:
        meta = json.loads((path / "meta.json").read_text())
        with np.load(path / "state.npz") as arrays:
            for group, params in (("p", self.learner.params), ("m", self.learner.mean), ("v", self.learner.square)):
                for name in params:
                    params[name] = arrays[f"{group}/{name}"]
            self.snapshots = [
                {"state": arrays[f"env{rank}/state"], "age": arrays[f"env{rank}/age"]} for rank in range(meta["actors"])
            ]
        if meta["seed"] != self.learner.seed:
            say(f"note: the checkpoint was made with seed {meta['seed']}, this run goes on with {self.learner.seed}")
        self.learner.updates = meta["updates"]
        self.step = self.saved_step = meta["step"]
        self.env_steps = meta["env_steps"]
        self.recent.extend(meta["recent_returns"])
        self.start_return = meta["start_return"]

    def run_step(self, actors: list) -> dict[str, float | int | None]:
        """One round of rollouts on all actors and one PPO step; returns its metrics."""
        began = time.monotonic()
        self.step += 1
        weights = ray.put(self.learner.params)
        parts = ray.get([actor.rollout.remote(weights, self.step) for actor in actors])
        sampled = time.monotonic()

        keys = ("states", "actions", "log_probs", "advantages", "value_targets")
        batch = {key: np.concatenate([part[key] for part in parts]) for key in keys}
        self.snapshots = [part["snapshot"] for part in parts]
        for part in parts:
            self.recent.extend(part["episode_returns"])
        self.env_steps += len(batch["actions"])
        if self.start_return is None:
            self.start_return = self.mean_return
        stats = self.learner.train(batch, self.step)
        ended = time.monotonic()
        return {
            "reward/mean": self.mean_return,
            "reward/episodes": sum(len(part["episode_returns"]) for part in parts),
            **stats,
            "timing_s/gen": sampled - began,
            "timing_s/update_actor": ended - sampled,
            "timing_s/step": ended - began,
            "perf/throughput": len(batch["actions"]) / (ended - began),
            "training/env_steps": self.env_steps,
        }


class StepRecords:
    """What is written at each step: the log line, `steps.log` and, when asked for, a jsonl file."""

    def __init__(self, steps_log: Path, metrics_file: Path | None) -> None:
        self.steps_log = steps_log.open("a")
        self.metrics = None
        if metrics_file is not None:
            metrics_file.parent.mkdir(parents=True, exist_ok=True)
            self.metrics = metrics_file.open("a")

    def write(self, step: int, metrics: dict[str, float | int | None]) -> None:
        known = {key: value for key, value in metrics.items() if value is not None}
        say(" - ".join([f"step:{step}", *(f"{key}:{value:.6g}" for key, value in known.items())]))
        self.steps_log.write(f"{step} {time.time():.3f}\n")
        self.steps_log.flush()
        if self.metrics is not None:
            self.metrics.write(json.dumps({"step": step, "data": known}) + "\n")
            self.metrics.flush()


def say(line: str) -> None:
    print(line, flush=True)


def start_actors(nodes: int, gpus: int, seed: int, snapshots: list, timeout: float):
    """One actor on each of `nodes` different nodes; returns (placement group, actors by rank)."""
    bundle = {"CPU": 1.0, **({"GPU": float(gpus)} if gpus else {})}
    group = placement_group([bundle] * nodes, strategy="STRICT_SPREAD")
    if not group.wait(timeout):
        raise TimeoutError(
            f"no {nodes} different nodes with {bundle} each within {timeout:g} s; the cluster has "
            + json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]])
        )
    actors = [
        RolloutActor.options(
            num_cpus=1,
            num_gpus=gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
        ).remote(rank, seed, snapshots[rank] if rank < len(snapshots) else None)
        for rank in range(nodes)
    ]
    for place in ray.get([actor.whereabouts.remote() for actor in actors]):
        say("rollout actor " + " ".join(f"{key}={value}" for key, value in place.items()))
    return group, actors


def verdict(training: Training, args: argparse.Namespace, seconds: float) -> int:
    """Print the last line and turn the course of the return into an exit code."""
    start, end = training.start_return, training.mean_return
    shown = ["none" if value is None else f"{value:.1f}" for value in (start, end)]
    say(f"done: step={training.step} start_return={shown[0]} end_return={shown[1]} seconds={seconds:.1f}")
    asked = args.until_file is not None and args.until_file.exists()
    if asked or args.steps < SMALL_RUN or (start is not None and end is not None and end >= MIN_RISE * start):
        return 0
    print(f"error: the return did not rise to {MIN_RISE:g} times its start", file=sys.stderr, flush=True)
    return EXIT_NO_RISE


def bounded(kind: type, least: float):
    """An argparse type: a number of `kind` that is at least `least`."""

    def parse(text: str):
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text}")
        return value

    parse.__name__ = kind.__name__
    return parse


def arguments() -> argparse.Namespace:
    env = os.environ
    parser = argparse.ArgumentParser(description="PPO on CartPole over the nodes of a gang (numpy and ray only).")
    add = parser.add_argument
    add("--steps", type=bounded(int, 1), default=40, help="train up to this step, counted over all runs")
    add("--ckpt-dir", type=Path, default=env.get("GANGLINE_CKPT_DIR") or None, help="default: $GANGLINE_CKPT_DIR")
    add("--save-every", type=bounded(int, 1), default=10, metavar="STEPS", help="steps between checkpoints")
    add("--keep", type=bounded(int, 1), default=3, help="checkpoints to keep")
    add("--target", type=float, metavar="RETURN", help="stop when the mean return has reached this")
    add("--until-file", type=Path, metavar="FILE", help="stop, and be content, after a step at which this file is there")
    add("--seed", type=bounded(int, 0), default=1)
    add(
        "--nnodes",
        type=bounded(int, 1),
        default=env.get("GANGLINE_NNODES", "2"),
        help="rollout actors, one per node; default: $GANGLINE_NNODES or 2",
    )
    add(
        "--gpus-per-actor",
        type=bounded(int, 0),
        default=env.get("GANGLINE_GPUS_PER_NODE", "0"),
        help="default: $GANGLINE_GPUS_PER_NODE or 0",
    )
    add("--step-sleep", type=bounded(float, 0), default=0.0, metavar="SECONDS", help="wait after each step")
    add("--start-timeout", type=bounded(float, 1), default=120.0, metavar="SECONDS", help="wait for the nodes")
    add(
        "--metrics-jsonl",
        action="store_true",
        help="write metrics to logs/metrics.jsonl beside the checkpoint directory; "
        "without it they go to $VERL_FILE_LOGGER_PATH, when that is set",
    )
    args = parser.parse_args()
    if args.ckpt_dir is None:
        parser.error("--ckpt-dir or GANGLINE_CKPT_DIR is required")
    return args


def main() -> int:
    args = arguments()
    began = time.monotonic()
    root: Path = args.ckpt_dir.resolve()
    root.mkdir(parents=True, exist_ok=True)
    logger_path = os.environ.get("VERL_FILE_LOGGER_PATH")
    metrics_file = Path(logger_path) if logger_path else None
    if args.metrics_jsonl:
        metrics_file = root.parent / "logs" / "metrics.jsonl"

    training = Training(args.seed)
    checkpoint = latest_checkpoint(root)
    if checkpoint is not None:
        training.load(checkpoint)
        say(f"resumed from {checkpoint} at step {training.step}")
        if training.step >= args.steps:
            say(f"nothing to do: the checkpoint is already at step {training.step} of {args.steps}")
            return verdict(training, args, time.monotonic() - began)

    # Never start a cluster of our own by accident: join the one of the gang, or fail.
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"))
    group, actors = start_actors(args.nnodes, args.gpus_per_actor, args.seed, training.snapshots, args.start_timeout)
    say(f"cluster ready after {time.monotonic() - began:.1f} s; training steps {training.step + 1} to {args.steps}")

    records = StepRecords(root / "steps.log", metrics_file)
    while training.step < args.steps:
        metrics = training.run_step(actors)
        records.write(training.step, metrics)
        if training.step % args.save_every == 0 or training.step == args.steps:
            training.save(root, args.keep)
        full = len(training.recent) == RETURN_WINDOW
        if args.target is not None and full and training.mean_return >= args.target:
            say(f"target return {args.target:g} reached at step {training.step}")
            training.save(root, args.keep)
            break
        if args.until_file is not None and args.until_file.exists():
            say(f"asked to stop by {args.until_file} at step {training.step}")
            training.save(root, args.keep)
            break
        time.sleep(args.step_sleep)

    remove_placement_group(group)
    ray.shutdown()
    return verdict(training, args, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
