"""The guard of parameters where PyTorch lacks its functions, as in builds without CUDA and before 2.12."""

import copy
import os
import unittest

import torch
from two import Rank, without_zero


def count_threads():
    """A process that is forked before its first backward."""
    import zero
    from models import configuration

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    engine = zero.fully_shard(model, configuration(3))
    loss = model(torch.ones(2, 4)).sum()
    before = len(os.listdir("/proc/self/task"))
    engine.backward(loss)
    print("more threads:", len(os.listdir("/proc/self/task")) - before)


FORKED = Rank(count_threads, 0)
for name in (
    "_set_storage_data_ptr_access_error_msg",
    "_clear_storage_data_ptr_access_error_msg",
    "_construct_storage_from_data_pointer",
):
    if hasattr(torch._C, name):
        delattr(torch._C, name)
from modules_test import Case, Mistakes, Passes, loss_of_vectors  # noqa: F401  # their cases run here, too


class Guard(Case):
    def test_views(self):
        """A view of a parameter, and what autograd has saved, raise PyTorch's own sentence."""
        engine, views = self.mlp(), []
        engine.commit()
        head = engine.model.head
        keep = head.register_forward_hook(lambda module, args, y: views.extend((module.weight.t(), module.weight.data, y)))
        loss = loss_of_vectors(engine.model, 0)
        keep.remove()
        *views, y = views
        for use in (*(view.sum for view in views), lambda: views[1].zero_(), lambda: y.grad_fn(torch.ones_like(y))):
            with self.assertRaisesRegex(RuntimeError, "Cannot access data pointer of Storage|head.weight is used outside of"):
                use()
        engine.backward(loss)
        engine.step()
        self.assertLosses([loss.item(), *self.train(engine, range(1, 4))], Passes.expected)

    def test_a_copy_is_a_plain_model(self):
        engine = self.mlp()
        self.train(engine, [0])
        with engine.full_parameters():
            whole = copy.deepcopy(engine.model)
        self.assertEqual({type(p) for p in whole.parameters()}, {torch.nn.Parameter})


class Import(unittest.TestCase):
    def test_an_older_version(self):
        def imports(place, name):
            without_zero()
            delattr(place, name)
            import zero

            zero.Engine  # noqa: B018

        for place, name in ((torch.compiler, "set_stance"), (torch._C, "_set_throw_on_mutable_data_ptr")):
            said = Rank(lambda place=place, name=name: imports(place, name), 0).output()
            self.assertIn("ImportError: zero needs PyTorch 2.6 or newer; this is", said)

    @unittest.skipIf(torch.cuda.is_available(), "PyTorch has a thread for each GPU")
    def test_no_thread_for_a_gpu(self):
        """The trace leaves PyTorch as it was: tensors without data make it believe in eight GPUs, and a forked process starts a thread
        for each."""
        self.assertRegex(FORKED.output(), "more threads: 0\n")


if __name__ == "__main__":
    unittest.main()
