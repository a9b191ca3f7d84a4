"""What a program gets that imports deepspeed, if this folder is on its path: zero.deepspeed."""

from zero.deepspeed.names import Missing, fill

fill(__name__)
__getattr__ = Missing(__name__)
