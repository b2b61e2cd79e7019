"""Whatever the OpenAPI document allows, and what it forbids: no operation breaks the server or answers as it does not say."""

import os
import subprocess
import sys
import time

import requests

EXAMPLES = os.environ.get("API_EXAMPLES", "200")  # an operation
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_generated_requests_get_what_the_document_says(own_server, tmp_path):
    server = own_server("--max-total-tokens", "48", "--max-input-length", "40", "--max-stop-sequences", "8")
    config = tmp_path / "schemathesis.toml"
    config.write_text('[generation]\ndeterministic = true\n')
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run",
               server.url + "/api-doc/openapi.json", "--max-examples", EXAMPLES, "--checks", CHECKS,
               "--request-timeout", "60", "--phases", "examples,coverage,fuzzing,stateful", "--no-color"]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    print(done.stdout[-6000:], done.stderr[-2000:], f"{time.monotonic() - begin:.0f} s")
    assert done.returncode == 0, done.stdout[-6000:]
    assert requests.get(server.url + "/health", timeout=60).status_code == 200
    assert server.token_ids("a", max_new_tokens=3) == server.token_ids("a", max_new_tokens=3)
