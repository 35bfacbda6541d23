"""A real browser for the tests: headless Chromium, driven over its debugging pipe, without a library or a port."""

import base64
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root, and open pages of their own only
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)
# Chromium reads commands from descriptor 3 and writes replies to 4, which the pipes may have in the other order.
ON_PIPES = """
import os, sys
for given, aside in zip(sys.argv[1:3], (198, 199)):
    os.dup2(int(given), aside)
os.dup2(198, 3), os.dup2(199, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page of a running Chromium: the commands of the DevTools protocol that the tests need."""

    def __init__(self, commands, replies):
        self._commands, self._replies = commands, replies
        self._sent = 0
        self._session = None
        self.events = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (reply := self._receive()).get("id") != self._sent:
            self.events.append(reply)
        assert "error" not in reply, reply
        return reply["result"]

    def wait_for(self, method):
        """Waits for an event that has not come before."""
        while (event := self._receive()).get("method") != method:
            self.events.append(event)

    def _receive(self):
        message = bytearray()
        while not message.endswith(b"\0"):
            piece = self._replies.read(1)
            assert piece, "the browser has ended"
            message += piece
        return json.loads(message[:-1])

    def open(self, path, fragment="", width=1400, height=900, dark=False):
        """Opens a file in a window of this size, and forgets what happened before."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url="about:blank")
        self.wait_for("Page.loadEventFired")
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri() + fragment)
        if not self.happened("Page.loadEventFired"):
            self.wait_for("Page.loadEventFired")

    def happened(self, method):
        return [event["params"] for event in self.events if event.get("method") == method]

    def run(self, expression):
        """Returns the value of a JavaScript expression; a promise is waited for."""
        done = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def text(self, selector="body"):
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def texts(self, selector):
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((element) => element.innerText)")

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" and len(key) == 1 else "")

    def type(self, selector, text):
        """Replaces the text of a field, and waits until the page has taken it in."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus(); document.activeElement.select()")
        self.send("Input.insertText", text=text)
        self.run("new Promise((resolve) => setTimeout(resolve, 300))")

    def choose(self, selector, value):
        field = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('change'))")
        assert self.run(f"{field}.value") == value

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))


@contextmanager
def _running(program, profile):
    (commands_in, commands_out), (replies_in, replies_out) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_PIPES, str(commands_in), str(replies_out), program, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(commands_in, replies_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_in)
    os.close(replies_out)
    try:
        with os.fdopen(commands_out, "wb") as commands, os.fdopen(replies_in, "rb") as replies:
            yield Browser(commands, replies)
            process.terminate()
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture(scope="session")
def browser(tmp_path_factory, install_debian):
    if not any(map(shutil.which, NAMES)):
        install_debian("chromium", "chromium")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with _running(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser
