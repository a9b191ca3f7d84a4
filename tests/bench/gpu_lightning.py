"""Lightning's DeepSpeedStrategy on this engine, of its Trainer and of Fabric, beside its own strategies for the same ranks: a row of
tools/gpu-check, since these strategies refuse CPUs. Here, with that refusal taken off:
    python -m zero.deepspeed --num_gpus 2 --no_local_rank gpu_lightning.py --device cpu
Prints a line for each result. Exit status 0: it passed, or its last line begins with "skipped: ". Needs zero and lightning."""

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile

import zero.deepspeed

zero.deepspeed.install()

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

options = argparse.Namespace()
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
CLIP = 0.4


def on_cpu():
    """Their check of the accelerator, and of indices of GPUs."""
    import lightning.fabric.strategies.deepspeed as of_fabric
    import lightning.pytorch.strategies.deepspeed as of_trainer
    from lightning import fabric, pytorch

    for module, kind in ((of_fabric, fabric.accelerators.CPUAccelerator), (of_trainer, pytorch.accelerators.CPUAccelerator)):
        module.CUDAAccelerator = kind
        module._validate_device_index_selection = lambda *_: None


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def loader(rows=2):
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(32, 8, generator=generator), torch.randn(32, 4, generator=generator)), batch_size=rows)


def place(name):
    path = os.path.join(tempfile.gettempdir(), f"zero-lightning-{os.environ.get('MASTER_PORT', '')}-{name}")
    if RANK == 0:
        shutil.rmtree(path, ignore_errors=True)
    return path


def strategy(module, stage, clip=None):
    if stage is None:
        return "ddp" if RANKS > 1 else "auto"
    made = module.DeepSpeedStrategy(stage=stage, process_group_backend="gloo" if options.device == "cpu" else None)
    if clip is not None:
        made.config["gradient_clipping"] = clip  # Fabric writes none, which is 1
    return made


def trained(stage):
    """Fit, test, fit on from the checkpoint, predict, and test what a new model loads."""
    import lightning as L
    from lightning.pytorch import strategies

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses = None, []

        def configure_model(self):  # inside of zero.Init at stage 3
            self.net = self.net or network()

        def training_step(self, batch, _):
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def test_step(self, batch, _):
            self.log("error", nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

        validation_step = test_step

        def predict_step(self, batch, _):
            return self.net(batch[0]).sum().item()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.1)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5), "interval": "step"}]

    def trainer(**more):
        # With DeepSpeed, Lightning divides the loss by the batches of a step as the engine does: norms are half of DDP's.
        return L.Trainer(
            accelerator="cpu" if options.device == "cpu" else "gpu",
            devices=RANKS,
            strategy=strategy(strategies, stage),
            accumulate_grad_batches=2,
            gradient_clip_val=CLIP if stage is None else CLIP / 2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **more,
        )

    saved, models = place(f"trainer-{stage}"), [Model(), Model(), Model()]
    first, second, third = trainer(max_steps=4), trainer(max_steps=7), trainer()
    first.fit(models[0], loader(), loader(4))
    found = [*models[0].losses, first.callback_metrics["error"].item()]
    first.save_checkpoint(saved)
    found.append(first.test(models[0], loader(4), verbose=False)[0]["error"])
    second.fit(models[1], loader(), loader(4), ckpt_path=saved)
    found += models[1].losses + [group["lr"] for group in second.optimizers[0].param_groups]
    found += second.predict(models[1], loader(4))
    found.append(third.test(models[2], loader(4), ckpt_path=saved, verbose=False)[0]["error"])
    return found


def with_fabric(stage):
    """Its own loop, with a checkpoint in it."""
    import lightning as L
    from lightning.fabric import strategies

    fabric = L.Fabric(accelerator="cpu" if options.device == "cpu" else "gpu", devices=RANKS, strategy=strategy(strategies, stage, 0.0))
    fabric.launch()
    saved, found = place(f"fabric-{stage}"), []

    def made():
        with fabric.init_module():
            model = network()
        return fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))

    def step(model, optimizer, batch):
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        fabric.backward(loss, model=model)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())

    batches = [*fabric.setup_dataloaders(loader())]
    model, optimizer = made()
    for i, batch in enumerate(batches[:4]):
        step(model, optimizer, batch)
        if i == 1:
            fabric.save(saved, {"model": model, "optimizer": optimizer, "step": i})
    model, optimizer = made()
    state = {"model": model, "optimizer": optimizer, "step": 0}
    fabric.load(saved, state)
    found.append(state["step"])
    for batch in batches[2:4]:
        step(model, optimizer, batch)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.parse_args(namespace=options)
    why = None
    if importlib.util.find_spec("lightning") is None:
        why = "there is no lightning"
    elif options.device == "cuda" and not torch.cuda.is_available():
        why = "PyTorch finds no GPU"
    if why:
        print(f"skipped: {why}")
        return
    if options.device == "cpu":
        on_cpu()
    for name, work in (("Trainer", trained), ("Fabric", with_fabric)):
        expected = torch.tensor(work(None))
        for stage in (2, 3):
            found = torch.tensor(work(stage))
            far = (found - expected).abs().max().item()
            if RANK == 0:
                print("ok " if far <= 2e-5 else "BAD", f"{name}, stage {stage}: {len(found)} numbers, {far:.1e} apart", flush=True)
            if not far <= 2e-5:
                sys.exit(f"gpu_lightning: {name} at stage {stage}: {found} in place of {expected}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
