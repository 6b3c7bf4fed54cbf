"""A worker may import a command of the laboratory first, before the command line that it is added to."""

import subprocess
import sys


def test_commands_can_be_imported_before_the_command_line():
    code = "import ragtree_lab.commands.sharing.engine_actor, services.cli.app"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
