"""The numbers of plain.py by PyTorch alone, in one process, with the batches of both ranks."""

import sys
import types

import torch

sys.modules.setdefault("deepspeed", types.ModuleType("deepspeed")).__version__ = ""  # plain.py imports it
from plain import Net, batch  # noqa: E402

RANKS = 2


class Loop:
    """AdamW on the mean over ranks, of losses that are divided by `steps`."""

    def __init__(self, steps=1, clip=1.0, parameters=lambda model: model.parameters()):
        self.model, self.steps, self.clip = Net(), steps, clip
        self.optimizer = torch.optim.AdamW(parameters(self.model), lr=1e-2, weight_decay=0.1)

    def backward(self, number, divide=None):
        """Rank 0's loss."""
        losses = [self.model(*batch(number, rank)) for rank in range(RANKS)]
        (sum(losses) / RANKS / (divide or self.steps)).backward()
        return losses[0].item()

    def step(self):
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(trained, self.clip).item()
        self.optimizer.step()
        self.model.zero_grad()
        return norm

    def rows(self, numbers, norm=None):
        """What plain.py's train returns."""
        found = []
        for i, number in enumerate(numbers):
            loss = self.backward(number)
            norm = self.step() if (i + 1) % self.steps == 0 else norm
            found.append([loss, loss / self.steps, norm, *(group["lr"] for group in self.optimizer.param_groups)])
        return found


def stages():
    loop, rows, norm = Loop(2, 0.5), [], None
    rates = [0.0, 0.0, 1e-2 / 2, 1e-2 * 1.584962500721156 / 2, 1e-2]  # of WarmupLR: log2(t) / 2
    for number in range(8):
        loop.optimizer.param_groups[0]["lr"] = rates[number // 2]
        loss = loop.backward(number)
        norm = loop.step() if number % 2 else norm
        rows.append([loss, loss / 2, norm, rates[(number + 1) // 2]])
    return rows


def boundaries():
    loop, found = Loop(), []
    for step, count in enumerate((3, 1, 2)):
        for i in range(count):
            loop.backward(10 * step + i, count)
        found.append(loop.step())
    return [*found, loop.backward(0)]


def module():
    return Loop().rows(range(2))


def configurations():
    return Loop().rows(range(1))


offloads, own_optimizers, closed = configurations, module, module
held = same_as_without_init = changed_type = aliases = copies = misused = list  # assertions of their own


def recomputes():
    return 2 * [module()]


def partly():
    return Loop(parameters=lambda model: model.head.parameters()).rows(range(2))


def evaluates():
    model = Net()
    return 2 * [model(*batch(number, 0)).item() for number in range(2)] + module()


def lent():
    loop = Loop()
    rows = loop.rows(range(3))
    loop.optimizer = type(loop.optimizer)(loop.model.parameters(), lr=1e-2, weight_decay=0.1)
    return [*rows[1:], *loop.rows(range(2))]


def destroyed():
    loop = Loop()
    loop.rows(range(1))
    loop.optimizer = type(loop.optimizer)(loop.model.parameters(), lr=1e-2, weight_decay=0.1)
    return 2 * [*loop.rows(range(1, 3)), loop.model(*batch(3, 0)).item()]


def saved_weights():
    loop = Loop()
    loop.rows(range(1))
    return 2 * [loop.model(*batch(60, 0)).item()]


def made_for_stage_3():
    loop = Loop()
    with torch.no_grad():
        loop.model.head.bias.fill_(0.5)
    return [*loop.rows(range(2)), sum(p.double().sum().item() for p in loop.model.parameters())]


def whole_values():
    loop, found = Loop(), []
    parameters = list(loop.model.parameters())
    for number in range(2):
        loop.backward(number)
        found += [p.grad.double().sum().item() for p in parameters]
        loop.step()
        for key in ("exp_avg", "exp_avg_sq"):
            found += [loop.optimizer.state[p][key].double().sum().item() for p in parameters]
        found += [p.detach().double().sum().item() for p in parameters]
    return 3 * found


def several():
    loop, critic, found = Loop(), Loop(), []
    for loss in (
        lambda a, b: loop.model(*a) + loop.model(*b),
        lambda a, b: 1.5 * loop.model(*a),
        lambda a, b: critic.model(b[0] * loop.model(*b), b[1]),
    ):
        (sum(loss(batch(0, rank), batch(1, rank)) for rank in range(RANKS)) / RANKS).backward()
        found.append(loop.step())
    critic.model.zero_grad()
    return 3 * [*found, critic.rows([0])[0][2]]


def unsynced():
    loop = Loop(2)
    loop.backward(0)
    loss = loop.backward(1)
    norm = loop.step()
    loop.steps = 4
    return [[loss, loss / 2, norm, 1e-2], *loop.rows(range(2, 6), norm)]


def unscaled():
    loop = Loop(2)
    found = loop.rows(range(2))
    loop.steps = 1
    return [*found, *loop.rows([2])]


def cleared():
    return 2 * [Loop(2).rows(range(4))[-1][2]]


def resumed():
    loop = Loop(3)
    found = loop.rows(range(3))
    loop.steps = 2
    return [*found, loop.rows(range(3, 5))[1][:3]]


def optimizers():
    """The schedule steps in the engine's step; the program doubles the rates after two steps, the schedule sets them again."""

    def groups(model):
        small = [p for p in model.parameters() if p.dim() == 1]
        large = [p for p in model.parameters() if p.dim() > 1]
        return torch.optim.AdamW([{"params": large, "weight_decay": 0.3}, {"params": small, "lr": 2e-2, "weight_decay": 0.0}], lr=1e-2)

    found = []
    for make in (
        groups,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-2),
    ):
        loop = Loop()
        loop.optimizer = make(loop.model)
        schedule = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 1 / (1 + step))
        for number in range(4):
            row = loop.rows([number])[0]
            schedule.step()
            found.append([*row[:3], *(group["lr"] for group in loop.optimizer.param_groups)])
            for group in loop.optimizer.param_groups if number == 1 else ():
                group["lr"] *= 2
                group["weight_decay"] *= group["weight_decay"] != 0.3
    return 2 * found
