"""A worker program that does what its request says, to see a pool deal with bad workers."""

import json
import os
import sys
import time

os.write(1, b"ready\n")
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "hang":
        time.sleep(3600)
    if request["do"] == "die":
        os._exit(3)
    if request["do"] == "babble":
        os.write(1, b"not json\n")
        continue
    os.write(1, json.dumps({"pid": os.getpid(), "length": len(request.get("text", ""))}).encode() + b"\n")
