"""The guard of parameters where PyTorch lacks its functions, as in builds without CUDA and before 2.12."""

import copy
import subprocess
import sys
import unittest

import torch

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
            with self.assertRaisesRegex(RuntimeError, "Cannot access data pointer of Storage"):
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
        for remove in ("torch.compiler.set_stance", "torch._C._set_throw_on_mutable_data_ptr"):
            program = f"import torch.compiler; del {remove}; import zero"
            result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
            self.assertIn("ImportError: zero needs PyTorch 2.6 or newer; this is", result.stderr)


if __name__ == "__main__":
    unittest.main()
