"""What every rank does with a plan: build, train, measure and save. Knows nothing of how ranks talk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from conf.types import ModelConfig, Split, Train
from storage import file_io
from training.checkpoints import Checkpoints, open_trained, save_trained
from training.data.loader import Loader
from training.data.sharding import DataFile, plan_shards, row_groups, shards_of_rank
from training.device.choose_device import choose_device
from training.device.memory import keep_freed_memory
from training.distributed.collectives import Collectives, LocalCollectives
from training.distributed.progress import Report
from training.embeddings.table import set_kernels
from training.kernels.choice import use_kernels
from training.loop.evaluate import evaluate
from training.loop.loss_check import LossWatch
from training.loop.profiling import StepProfiler
from training.loop.train_step import Trainer
from training.loop.training_loop import train_model
from training.loop.training_plan import TrainPlan
from training.loop.warm_start import warm_start
from training.models import build_model

log = logging.getLogger("nightrank.training")

_MEASURED: tuple[Split, ...] = ("validation", "test")


def run_plan(
    plan: TrainPlan,
    collectives: Collectives,
    device: torch.device,
    *,
    report: Report | None = None,
    at_checkpoint: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Trains, measures and saves the model of a plan; then its baselines, of which only measures are kept.

    Args:
        report: hears of the log entries of every training, with its architecture as `training` and its `steps`.
        at_checkpoint: called on every rank when a checkpoint is on its way to the disk; may raise to end the training there.

    Returns:
        What model.json holds: of this training, or of another attempt that has published the same version before.

    Raises:
        ConfigError, DataError: from the model's configuration, the data or the parent.
    """
    leads = collectives.rank == 0
    held_out = {
        split: _loader(plan, plan.splits[split], collectives, device, shuffled=False) for split in _MEASURED
    }
    model = _build(plan, plan.model, collectives, device)
    if device.type == "cpu":
        keep_freed_memory()
    trainer = Trainer(model, plan.train, collectives)
    if plan.parent_path is not None:
        warm_start(trainer, plan.spec, *open_trained(plan.parent_path, collectives))
    loader = _loader(plan, plan.train_files, collectives, device, shuffled=True)
    with Checkpoints(plan.checkpoint_path, collectives, plan.train.keep_checkpoints) as checkpoints:
        training = train_model(
            trainer,
            loader,
            plan.train,
            device,
            checkpoints,
            reports=leads,
            report=_labelled(report, plan.model.architecture, loader, plan.train),
            at_checkpoint=at_checkpoint,
            validate=partial(evaluate, model, held_out["validation"], collectives, device),
            watch=_watch(plan, loader, plan.train_files, collectives),
            profiler=StepProfiler(plan.train.profile, f"{plan.checkpoint_path}.profile", collectives.rank),
        )
        checkpoints.wait()
    metrics = _measure(model, held_out, collectives, device)
    baselines = {}
    for name in plan.train.baselines:
        baseline = _build(
            plan, ModelConfig(architecture=name, multi_hot=plan.model.multi_hot), collectives, device
        )
        if leads:
            log.info("baseline %s", name)
        every = _loader(plan, plan.splits["train"], collectives, device, shuffled=True)
        train_model(
            Trainer(baseline, plan.train, collectives),
            every,
            plan.train,
            device,
            None,
            reports=leads,
            report=_labelled(report, name, every, plan.train),
            watch=_watch(plan, every, plan.splits["train"], collectives),
        )
        baselines[name] = _measure(baseline, held_out, collectives, device)
    description = {
        **plan.description,
        "metrics": metrics,
        "baselines": baselines,
        "history": training.history,
        "train_rows": sum(file.rows for file in plan.train_files),
        "steps": training.steps,
        "seconds": training.seconds,
        "stopped": training.stopped,
        "num_ranks": collectives.size,
        "created_at": file_io.utc_now(),
    }
    published = save_trained(plan.model_path, trainer, description, collectives)
    checkpoints.delete()
    return published


def train_in_process(plan: TrainPlan) -> dict[str, Any]:
    """Trains on one rank in this very process, without Spark and Horovod: for a debugger, and for tests."""
    return run_plan(plan, LocalCollectives(), choose_device(plan.train.device, 0, "train.device"))


def _labelled(report: Report | None, name: str, loader: Loader, train: Train) -> Report | None:
    """Adds to a training's entries what the driver must know to show them."""
    if report is None:
        return None
    steps = loader.plan.steps * train.epochs
    about = {"training": name, "steps": steps, "batch_rows": train.global_batch_size}
    return lambda entry: report({**about, **entry})


def _build(plan: TrainPlan, config: ModelConfig, collectives: Collectives, device: torch.device) -> nn.Module:
    train = plan.train
    model = build_model(config, plan.spec, train.seed, train.embeddings, collectives).to(device)
    set_kernels(model, use_kernels(train.kernels, device, "train.kernels"))
    return model


def _loader(
    plan: TrainPlan,
    files: Sequence[DataFile],
    collectives: Collectives,
    device: torch.device,
    *,
    shuffled: bool,
) -> Loader:
    """This rank's loader of some files."""
    train = plan.train
    shards = plan_shards(
        [group.rows for group in row_groups(files)], train.num_shards, train.global_batch_size
    )
    own = shards_of_rank(train.num_shards, collectives.rank, collectives.size)
    return Loader(
        files,
        shards,
        own,
        plan.spec,
        train.seed if shuffled else None,
        plan.model.multi_hot,
        device,
        train.reading,
    )


def _watch(plan: TrainPlan, loader: Loader, files: Sequence[DataFile], collectives: Collectives) -> LossWatch:
    return LossWatch(loader, files, plan.model.multi_hot, collectives, plan.checkpoint_path)


def _measure(
    model: nn.Module, loaders: Mapping[Split, Loader], collectives: Collectives, device: torch.device
) -> dict[str, Any]:
    return {split: evaluate(model, loader, collectives, device) for split, loader in loaders.items()}
