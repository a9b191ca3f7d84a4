"""What a launcher gives a program."""

import argparse
import json
import os
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--word")
if sys.argv[-1] == "joins":
    import deepspeed

    parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
if args.word == "bad":
    if args.local_rank == 1:
        print("rank 1 ends", flush=True)
        sys.exit(3)
    time.sleep(100)
place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
size = int(os.environ["WORLD_SIZE"])
if args.word == "joins":
    deepspeed.init_distributed()
    deepspeed.comm.barrier()
    size = deepspeed.comm.get_world_size()
print("RESULT " + json.dumps({os.environ["RANK"]: [size, args.local_rank, args.word, place]}), flush=True)
