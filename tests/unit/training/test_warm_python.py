"""The fork server, driven as Ray and multiprocessing drive a Python executable."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# The server must be forked by a process without threads, which pytest's may not be: a small driver stands for the run.
DRIVER = """
import sys, threading
from pathlib import Path
import decimal  # what the forks should find imported
from atlas_rl.training.warm_python import WarmPython
server = WarmPython(Path(sys.argv[1]))
print(server.executable, flush=True)
sys.stdin.read()
server.close()
"""


@pytest.fixture
def python(tmp_path: Path) -> Iterator[str]:
    """The path of a warm executable."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    yield driver.stdout.readline().strip()
    driver.stdin.close()
    assert driver.wait(timeout=30) == 0
    driver.stdout.close()


def test_a_fork_has_the_clients_arguments_environment_folder_and_streams(python: str, tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv[1:], os.environ['COLOUR'], os.getcwd(), sys.stdin.read())"
    done = subprocess.run(
        [python, "-c", code, "two words", "b"], env={**os.environ, "COLOUR": "red"}, cwd=tmp_path,
        input="typed", capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, f"['two words', 'b'] red {tmp_path} typed\n", "")


def test_a_fork_has_imported_what_the_driver_had(python: str) -> None:
    code = "import sys; print('decimal' in sys.modules, 'atlas_rl.training.warm_python' in sys.modules)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30).stdout == "True True\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(7)", 7), ("raise SystemExit", 0), ("import os; os.kill(os.getpid(), 9)", -9), ("1 / 0", 1)],
)
def test_the_client_ends_as_its_fork_ends(python: str, code: str, status: int) -> None:
    assert subprocess.run([python, "-u", "-c", code], capture_output=True, timeout=30).returncode == status


def test_a_script_runs_as_main(python: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nif __name__ == '__main__':\n    print(__file__, sys.argv[1])\n")
    done = subprocess.run([python, str(script), "x"], capture_output=True, text=True, timeout=30)
    assert done.stdout == f"{script} x\n"


def test_inherited_descriptors_keep_their_numbers(python: str) -> None:
    reading, writing = os.pipe()
    code = f"import os; os.write({writing}, b'through the pipe')"
    subprocess.run([python, "-c", code], pass_fds=[writing], timeout=30, check=True)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"through the pipe"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_fork_ends_with_its_client(python: str, number: signal.Signals) -> None:
    client = subprocess.Popen(
        [python, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    fork = int(client.stdout.readline())
    client.send_signal(number)
    client.wait(timeout=30)
    client.stdout.close()
    deadline = time.monotonic() + 30
    while _runs(fork) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(fork)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_server_beside_a_thread_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys, threading, time\nfrom pathlib import Path\n"
        "from atlas_rl.training.warm_python import WarmPython\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True, name='busy').start()\n"
        "WarmPython(Path(sys.argv[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "threads ['MainThread', 'busy'] run already; fork the server before them" in done.stderr
