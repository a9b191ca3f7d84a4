"""What a launcher gives a program."""

import argparse
import json
import os
import sys
import time

import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--word")
args = deepspeed.add_config_arguments(parser).parse_args()
if args.word == "bad":
    if args.local_rank == 1:
        print("rank 1 ends", flush=True)
        sys.exit(3)
    time.sleep(100)
deepspeed.init_distributed()
deepspeed.comm.barrier()
size = deepspeed.comm.get_world_size()
print("RESULT " + json.dumps({os.environ["RANK"]: [size, args.local_rank, args.word]}), flush=True)
