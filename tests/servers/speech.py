"""A speech server on loopback, as OpenAI's answers: the model is real, the troubles are made."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from intermission.backends.speech.whisper import WhisperEngine
from intermission.ports.speech import AUTO, Transcription

KEY = "a-secret"


@dataclass
class SpeechServer:
    """Answers until it is closed. `troubles` are (status, headers) to answer instead, in turn."""

    port: int = 0
    calls: Counter[str] = field(default_factory=Counter[str])
    """Requests by their idempotency key."""
    fields: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    troubles: list[tuple[int, Mapping[str, str]]] = field(
        default_factory=list[tuple[int, Mapping[str, str]]]
    )
    shape: str = "words"
    """What an answer has: `words`, or `segments` alone."""
    documents: list[object] = field(default_factory=list[object])
    """What to answer in place of a transcription, in turn."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def serving() -> Iterator[SpeechServer]:
    server = SpeechServer()
    engine = WhisperEngine()
    speech = engine.load(engine.identify("", "en"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            form = BytesParser(policy=HTTP).parsebytes(head + body)
            parts: dict[str, bytes] = {
                str(part.get_param("name", header="content-disposition")): bytes(
                    part.get_payload(decode=True)
                )
                for part in form.iter_parts()  # type: ignore[attr-defined]
            }
            with server.lock:
                server.calls[self.headers.get("Idempotency-Key", "")] += 1
                server.fields.append({k: v.decode() for k, v in parts.items() if k != "file"})
                if self.headers.get("Authorization") != f"Bearer {KEY}":
                    return self._answer(401, {})
                if server.troubles:
                    status, headers = server.troubles.pop(0)
                    return self._answer(status, {"error": "made trouble"}, headers)
                if server.documents:
                    return self._answer(200, server.documents.pop(0))
                language = server.fields[-1].get("language", AUTO)
                audio = parts["file"][44:]  # behind the header of a WAV file
                heard = speech.transcribe(audio, language=language, beam_size=2, key="")
                self._answer(200, _shaped(heard, server.shape))

        def _answer(
            self, status: int, document: object, headers: Mapping[str, str] | None = None
        ) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    server.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def _shaped(heard: Transcription, shape: str) -> dict[str, object]:
    text = "".join(word.text for word in heard.words).strip()
    words = [
        {
            "word": word.text.strip(" .,?!"),
            "start": word.start_ms / 1000,
            "end": word.end_ms / 1000,
        }
        for word in heard.words
    ]
    document: dict[str, object] = {"language": heard.language, "text": text}
    if shape == "words":
        document["words"] = words
    elif words:
        span = {"start": words[0]["start"], "end": words[-1]["end"]}
        document["segments"] = [{**span, "text": f" {text}", "avg_logprob": -0.25}]
    return document
