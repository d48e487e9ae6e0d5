#!/usr/bin/env python3
"""Stand-in for the engine that leaks: it answers like a ready Redline, and for each request whose
client leaves early it keeps a file, a thread, 256 KiB of memory and a KV page for good."""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INFO = {
    "engine": "redline", "version": "0.0.1", "device": "cpu", "device_name": "none",
    "config": {"tp": {"value": 1, "source": "default"}},
    "config_sha256": "0" * 64,
    "kv": {"pages": 1024, "page_tokens": 16, "bytes": 4096, "dtype": "f32"},
    "model": {"id": "stand-in", "weights": "random"},
}
ROUTES = {
    "/health": {"status": "ok"},
    "/server_info": INFO,
    "/v1/models": {"data": [{"id": "stand-in"}]},
    "/reset_prefix_cache": {"freed_pages": 0},
}
# What the abandoned requests hold.
LEAKED = []


def leak():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    LEAKED.append((os.open("/dev/null", os.O_RDONLY), b"x" * (1 << 18)))


def metrics():
    values = {
        "requests_running": 0, "requests_waiting": 0, "kv_pages": 1024,
        "kv_pages_used": len(LEAKED), "kv_pages_touched": 1024,
    }
    return "".join(f"redline_{name} {value}\n" for name, value in values.items())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/metrics":
            self.answer("text/plain", metrics())
        else:
            self.answer("application/json", json.dumps(ROUTES[self.path]))

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if self.path in ROUTES:
            return self.answer("application/json", json.dumps(ROUTES[self.path]))
        try:
            if len(body) < length:
                raise ConnectionError("the client left before it had sent the body")
            self.stream(json.loads(body))
        except ConnectionError:
            leak()
            self.close_connection = True

    def answer(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def stream(self, request):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens = request["max_tokens"]
        for token in range(tokens):
            choice = {"index": 0, "token_ids": [100 + token],
                      "finish_reason": "length" if token == tokens - 1 else None}
            choice |= {"delta": {"content": " t"}} if "messages" in request else {"text": " t"}
            self.event(json.dumps({"choices": [choice]}))
            # Long enough for a client to leave within the answer.
            time.sleep(0.002)
        usage = {"prompt_tokens": len(request.get("prompt", "")), "completion_tokens": tokens}
        self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """A client that leaves between two requests is no error."""


Server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
