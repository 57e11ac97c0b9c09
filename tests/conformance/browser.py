"""A headless Chromium, spoken to through its pipe: no package and no port."""

import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser():
    """Return the path of a Chromium, from SDPAKIT_CHROMIUM or PATH, or None."""
    named = os.environ.get("SDPAKIT_CHROMIUM")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a browser.

    `problems` are what the console of the page has seen: exceptions, and what its policy refused.
    """

    def __init__(self, program, folder):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        flags += ["--no-first-run", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]
        # Chromium reads from descriptor 3 and writes to 4, whatever numbers the pipes have here.
        line = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", program, *flags, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._left, self._count, self._session = b"", 0, None
        self.problems, self._loaded = [], False
        pages = self.send("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in pages if each["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def close(self):
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def send(self, method, **parameters):
        """Return the answer to one call of the protocol."""
        self._count += 1
        call = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            call["sessionId"] = self._session
        os.write(self._out, json.dumps(call).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._count:
                assert "error" not in message, message["error"]
                return message["result"]

    def _next(self, seconds=60):
        end = time.monotonic() + seconds
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser died"
            self._left += part
        text, _, self._left = self._left.partition(b"\0")
        message = json.loads(text)
        self._hear(message)
        return message

    def _hear(self, message):
        method = message.get("method")
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(message["params"])

    def open(self, address):
        """Load a page and wait for it."""
        self.problems.clear()
        for url in ("about:blank", address):  # another hash alone would load nothing
            self._loaded = False
            self.send("Page.navigate", url=url)
            while not self._loaded:
                self._next()

    def run(self, script):
        """Return the value of an expression in the page; a promise is awaited."""
        found = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script, seconds=20):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.02)

    def size(self, width, height=800):
        """Give the window a size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def media(self, **features):
        """Set what the style sheet asks about."""
        given = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.send("Emulation.setEmulatedMedia", features=given)

    def press(self, key, code=0):
        """Press and release a key."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {"Tab": 9, "Enter": 13, " ": 32}.get(key, code)
        for kind in ("keyDown", "keyUp"):
            given = {"text": text} if text and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **given
            )
