"""A hub that speaks the protocol of Hugging Face's as strictly as that does, and a store at another origin that holds its
large files. Facts: huggingface_hub (file_download.py), which the tests also run against it."""

import hashlib
import hmac
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from fake_web import Answer, Seen, Web, ranged


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # hash: files by name
    refs: dict[str, str] = field(default_factory=dict)  # branches and tags: hash
    readers: set[str] | None = None  # tokens; None: public
    gated: bool = False


class Store(Web):
    """Gives what a signed address names, and takes no token."""

    def __init__(self, certificate: Path | None = None):
        super().__init__(certificate)
        self.files: dict[str, bytes] = {}
        self.secret = b"of the hub and its store"

    def sign(self, name: str) -> str:
        return hmac.new(self.secret, name.encode(), hashlib.sha256).hexdigest()

    def address(self, body: bytes) -> str:
        name = hashlib.sha256(body).hexdigest()
        self.files[name] = body
        return f"{self.url}/blobs/{name}?Expires=1&Signature={self.sign(name)}"

    def answer(self, seen: Seen) -> Answer:
        if "authorization" in seen.headers:
            self.fault(f"a token was sent to another origin: {seen.path}")
            return Answer(400)
        url = urlsplit(seen.path)
        name = url.path.removeprefix("/blobs/")
        if parse_qs(url.query).get("Signature") != [self.sign(name)]:
            return Answer(403)
        return ranged(self.files[name], {"ETag": f'"{name}"', "Accept-Ranges": "bytes"}, seen)


class FakeHub(Web):
    def __init__(self, certificate: Path | None = None):
        super().__init__(certificate)
        self.store = Store(certificate)
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}  # old names
        self.tokens: set[str] = set()

    def close(self) -> None:
        super().close()
        self.store.close()

    def add(self, name: str, folder: Path, revision: str = "main", readers: set[str] | None = None) -> str:
        """The files of a folder as a commit, which `revision` stands for from now on."""
        repository = self.repositories.setdefault(name, Repository(readers=readers))
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        commit = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
        repository.commits[commit] = files
        repository.refs[revision] = commit
        self.tokens |= readers or set()
        return commit

    def answer(self, seen: Seen) -> Answer:
        path = urlsplit(seen.path).path
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not found:
            self.fault(f"no such route: {seen.method} {path}")
            return Answer(404)
        name, revision, file = (unquote(part) for part in found.groups())
        if name in self.moved:
            return Answer(307, {"Location": path.replace(name, self.moved[name], 1)})
        refused = self.refuse(name, seen)
        if refused:
            return refused
        repository = self.repositories[name]
        commit = revision if revision in repository.commits else repository.refs.get(revision)
        if commit is None:
            return Answer(404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
        if file not in repository.commits[commit]:
            if not file.endswith((".json", ".safetensors")):
                self.fault(f"asked for {file}")
            return Answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b"Entry not found")
        return self.give(repository.commits[commit][file], file, commit, seen)

    def refuse(self, name: str, seen: Seen) -> Answer | None:
        scheme, _, token = seen.headers.get("authorization", "").partition(" ")
        if scheme not in ("", "Bearer"):
            self.fault(f"authorization: {scheme}")
        if token and token not in self.tokens:  # even where no token is needed
            return Answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"}, b"{}")
        repository = self.repositories.get(name)
        if repository is None or (repository.readers is not None and token not in repository.readers):
            return Answer(404 if token else 401, {"X-Error-Code": "RepoNotFound"}, b"{}")
        if repository.gated:
            return Answer(403, {"X-Error-Code": "GatedRepo"}, b"{}")
        return None

    def give(self, body: bytes, file: str, commit: str, seen: Seen) -> Answer:
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if seen.method == "HEAD" and seen.headers.get("accept-encoding") != "identity":
            self.fault("a length was asked for of what may be compressed")
        if file.endswith(".safetensors"):
            digest = hashlib.sha256(body).hexdigest()
            linked = {"X-Linked-Size": str(len(body)), "X-Linked-ETag": f'"{digest}"'}
            return Answer(302, {**headers, **linked, "Location": self.store.address(body)}, b"Found")
        digest = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        return ranged(body, {**headers, "ETag": f'"{digest}"'}, seen)


def written_by(module: str, folder: Path) -> None:
    """A PEFT folder whose weights are pickled."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "library": module}))
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n.")
