"""A bucket store that speaks S3's protocol. Signatures are checked by botocore, which made none of them."""

import datetime
import hashlib
import re
from urllib.parse import unquote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from fake_web import Answer, Seen, Web, ranged

EMPTY = hashlib.sha256(b"").hexdigest()


class FakeS3(Web):
    def __init__(self, region: str = "eu-west-3", session_token: str | None = None):
        super().__init__()
        self.region = region
        self.credentials = Credentials("AKIDEXAMPLE", "a secret/with+signs", session_token)
        self.objects: dict[str, bytes] = {}  # "bucket/key"

    def environment(self) -> dict[str, str]:
        secrets = {"AWS_ACCESS_KEY_ID": self.credentials.access_key, "AWS_REGION": self.region,
                   "AWS_SECRET_ACCESS_KEY": self.credentials.secret_key, "S3_ENDPOINT_URL": self.url}
        return secrets | ({"AWS_SESSION_TOKEN": self.credentials.token} if self.credentials.token else {})

    def add(self, path: str, folder) -> None:
        for file in folder.iterdir():
            self.objects[f"{path}/{file.name}"] = file.read_bytes()

    def answer(self, seen: Seen) -> Answer:
        wrong = self.wrong_signature(seen)
        if wrong:
            return Answer(403, {}, f"<Error><Code>SignatureDoesNotMatch</Code><Message>{wrong}</Message></Error>".encode())
        url = urlsplit(seen.path)
        if url.query:
            self.fault(f"a query: {url.query}")
        body = self.objects.get(unquote(url.path).removeprefix("/"))
        if body is None:
            return Answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        if seen.headers.get("if-match", etag) != etag:
            return Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        return ranged(body, {"ETag": etag, "Accept-Ranges": "bytes"}, seen)

    def wrong_signature(self, seen: Seen) -> str | None:
        pattern = r"AWS4-HMAC-SHA256 Credential=([^,]+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
        parts = re.fullmatch(pattern, seen.headers.get("authorization", ""))
        if not parts:
            return "no signature"
        scope, names, signature = parts.groups()
        date = seen.headers.get("x-amz-date", "")
        if scope != f"{self.credentials.access_key}/{date[:8]}/{self.region}/s3/aws4_request":
            return f"scope {scope}"
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.strptime(date + "+0000", "%Y%m%dT%H%M%SZ%z")
        if abs(age) > datetime.timedelta(minutes=15):
            return "RequestTimeTooSkewed"
        signed = names.split(";")
        must = {"host", "x-amz-content-sha256"} | {name for name in seen.headers if name.startswith("x-amz-")}
        if signed != sorted(signed) or not must <= set(signed):
            return f"signed are {names}, expected {sorted(must)}"
        if seen.headers["x-amz-content-sha256"] != EMPTY:
            return "the payload's digest"
        if seen.headers.get("x-amz-security-token") != self.credentials.token:
            return "the session's token"
        # As it was sent: botocore would escape the path itself.
        request = AWSRequest(seen.method, f"http://{seen.headers['host']}{seen.path}",
                             {name: seen.headers[name] for name in signed})
        request.context["timestamp"] = date
        judge = S3SigV4Auth(self.credentials, "s3", self.region)
        expected = judge.signature(judge.string_to_sign(request, judge.canonical_request(request)), request)
        return None if expected == signature else "the signature"
