"""A training loop of three steps that tells each tracker its loss, as a user's program would: it
names no run, project, server or directory."""

import os

import mlflow
import tensorboardX
import wandb

curve = wandb.init()
board = tensorboardX.SummaryWriter(os.environ["TENSORBOARD_DIR"])
with mlflow.start_run():
    for step in range(3):
        loss = 0.5 ** (step + 1)
        curve.log({"loss": loss}, step=step)
        board.add_scalar("loss", loss, step)
        mlflow.log_metric("loss", loss, step=step)
board.close()
curve.finish()
