"""Environment variables of a job: Ray shows them to whoever may see the cluster, so a secret must not be among them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...actors.tools.redaction import redact
from ...protocol.errors import ConfigurationError

_SECRET_NAME = re.compile(
    r"(^|_)(API_?KEY|ACCESS_?KEY(_ID)?|SECRET_?KEY|PRIVATE_?KEY|AUTH_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PAT)$"
)
_HARMLESS = re.compile(r"^(\d+(\.\d+)?|true|false|yes|no|on|off|)$", re.IGNORECASE)


def check_environment(variables: Mapping[str, str]) -> None:
    """Refuse variables that look like secrets, by their name or their value.

    Raises:
        ConfigurationError: names the variable, never its value, and says what to write instead.
    """
    for name, value in variables.items():
        if looks_secret(name, value):
            raise ConfigurationError(
                f"job.env_vars: {name} looks like a secret, and everybody who can see the cluster can read the environment "
                f"of a job. Give a reference instead, in the file 'secrets: {{{name}: env:{name}}}' (the nodes have it) or "
                f"'{{{name}: file:/run/secrets/{name.lower()}}}', or on the command line --secret {name}=env:{name}"
            )


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable is one that should not be shown. Numbers and switches are harmless, whatever their name."""
    if _HARMLESS.match(value.strip()):
        return False
    private = value.replace("/root", "").replace("/home", "").replace("/Users", "")  # a path is no secret
    return bool(_SECRET_NAME.search(name.upper())) or redact(private) != private
