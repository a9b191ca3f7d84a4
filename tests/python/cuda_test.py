"""What the package does for a GPU, without one: which GPU and stream it says."""

import unittest
from unittest.mock import MagicMock, patch

import torch
import torch.distributed as dist
from models import MLP, configuration, loss_of_vectors, made
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import zero
from zero import _abi

GPU = torch.device("cuda", 1)


class Opened(Exception):
    """In place of an engine on a GPU."""


def cuda(current=0, stream=0, initialized=True):
    """torch.cuda of a process with eight GPUs."""
    streams = lambda device=None: MagicMock(cuda_stream=stream)
    answers = {"is_available": lambda: True, "is_initialized": lambda: initialized, "current_device": lambda: current}
    answers |= {"device_count": lambda: 8, "set_device": MagicMock(), "current_stream": MagicMock(side_effect=streams)}
    return patch.multiple(torch.cuda, **answers)


def opened(model, **options):
    """The zero_runtime that fully_shard gives."""
    given = []

    def zero_engine_open(config, runtime):
        given.append(runtime)
        raise Opened

    with patch.object(_abi.lib, "zero_engine_open", zero_engine_open):
        try:
            zero.fully_shard(model, configuration(3), **options)
        except Opened:
            return given[0]


class Opening(unittest.TestCase):
    def test_which_gpu(self):
        """The one of `device`, of the model, or the current one; where no one has chosen, 0, for the engine to take the launcher's."""
        for device, place, current, expected in (
            (torch.device("cuda", 3), "cpu", 2, 3),
            (torch.device("cuda"), "cpu", 2, 2),
            (torch.device("cuda", 0), "cpu", 2, 0),
            (None, "meta", 2, 2),
            (None, "cuda:5", 2, 5),
            (None, "cuda:0", 0, 0),
        ):
            with self.subTest(device=device, place=place), cuda(current, stream=0x70):
                with FakeTensorMode():
                    model = nn.ParameterList([torch.empty(4, device=place)])
                runtime = opened(model, device=device)
                self.assertEqual((runtime.cuda, runtime.local_rank, runtime.size), (1, expected, 0))
                self.assertEqual((runtime.cuda_stream, runtime.cuda_default_stream), (0x70, 0))
                torch.cuda.set_device.assert_called_with(expected)  # current_stream() and NCCL's broadcast are of this one

    def test_ranks_of_torch_distributed(self):
        """Each takes its own GPU, also where the program has chosen none."""
        for device, current, local, expected in ((None, 0, 6, 6), (None, 3, 6, 3), (torch.device("cuda", 0), 3, 6, 0), (None, 0, None, 0)):
            answers = {"is_initialized": lambda: True, "get_world_size": lambda: 8, "get_rank": lambda: 0}
            answers["broadcast_object_list"] = lambda place, src: None
            answers["get_node_local_rank"] = lambda otherwise, local=local: otherwise if local is None else local
            with self.subTest(device=device, local=local), cuda(current), patch.multiple(dist, **answers):
                runtime = opened(MLP().to("meta"), device=device)
            self.assertEqual((runtime.size, runtime.local_rank), (8, expected))

    def test_streams(self):
        """The default stream's handle is 0. A GPU that the configuration alone chooses gets the same stream as the program's."""
        with cuda():
            runtime = opened(MLP(), device=torch.device("cuda"))
            self.assertEqual((runtime.cuda, runtime.cuda_stream, runtime.cuda_default_stream), (1, None, 1))
        for initialized, stream, expected in ((False, 0x70, (0, None, 1)), (True, 0x70, (0, 0x70, 0)), (True, 0, (0, None, 1))):
            with cuda(4, stream, initialized):
                runtime = opened(MLP())
                self.assertEqual((runtime.cuda, runtime.cuda_stream, runtime.cuda_default_stream), expected)
                self.assertEqual(runtime.local_rank, 4 if initialized else 0)

    def test_another_gpu_than_device_says(self):
        """Here the engine's is the CPU."""
        with cuda(), self.assertRaisesRegex(ValueError, "device is cuda:0, and this rank's is cpu, .*device.index"):
            zero.fully_shard(MLP(), configuration(3, device={"type": "cpu"}), device=torch.device("cuda", 0))
        zero.fully_shard(MLP(), configuration(3), device=torch.device("cpu", 0)).close()

    def test_another_stream(self):
        engine = zero.fully_shard(made("mlp"), configuration(3))
        engine.commit()
        engine._passes.device, engine._passes.stream = GPU, 0
        with cuda(stream=0x70), self.assertRaisesRegex(zero.ZeroError, "another CUDA stream"):
            loss_of_vectors(engine.model, 0)
        with cuda():
            engine.backward(loss_of_vectors(engine.model, 0))
        engine.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
