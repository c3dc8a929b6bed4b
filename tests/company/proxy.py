"""A network between mounts and server that fails: a TCP proxy in a process of its own.

What it does to a connection or to a chunk of bytes is chosen at random by the rates of the weather, which the test may
change at any time:

    delay       a chunk comes late, by up to 40 ms
    hold        a new connection reaches the server only after a while: whole connections overtake each other
    cut         a connection ends in the middle of a chunk, and so of a message, in either direction
    lose        a mutation reaches the server, its answer is lost, and the connection ends
    late        a connection ends for the client, and what it had sent reaches the server a while later, after the
                client has asked again over another one
    late_close  the same, for each request that closes files, in place of a part of the mutations
    replay      when a connection has ended, all that the client sent over it is sent to the server once more
    swallow     a connection stays open, but nothing comes through any more

A mutation is recognized by its frame (src/rpc/frame.h); if the bytes are no frames, every chunk is taken for one."""
import asyncio
import mmap
import multiprocessing
import os
import random
import struct
import sys

from company import die_with_parent

RATES = ["delay", "hold", "cut", "lose", "late", "late_close", "replay", "swallow"]
OP_CLOSE = 33
CALM = {}
STORM = {"delay": 0.1, "hold": 0.2, "cut": 0.01, "lose": 0.02, "late": 0.02}
SCALE = 1_000_000
CHUNK = 65536
HEADER = struct.Struct("<IIHHIQQQ")
MESSAGE_MAX, BULK_MAX = 4 << 20, (128 << 20) + 4096
REPLAY_BYTES_MAX = 1 << 18


class Frames:
    """Follows one direction of a connection: fed with chunks, it tells how many mutations begin in each, and whether
    the last one closed files."""

    def __init__(self):
        self.head, self.skip, self.lost, self.closes = b"", 0, False, False

    def feed(self, data):
        mutations, at, self.closes = 0, 0, False
        while at < len(data) and not self.lost:
            if self.skip:
                step = min(self.skip, len(data) - at)
                self.skip, at = self.skip - step, at + step
                continue
            step = min(HEADER.size - len(self.head), len(data) - at)
            self.head, at = self.head + data[at:at + step], at + step
            if len(self.head) == HEADER.size:
                message, bulk, op, _, _, _, number, _ = HEADER.unpack(self.head)
                self.closes = self.closes or op == OP_CLOSE
                self.head, self.skip = b"", message + bulk
                self.lost = message > MESSAGE_MAX or bulk > BULK_MAX
                mutations += number != 0
        return 1 if self.lost else mutations


class Proxy:
    """address: where the mounts find it.  counts(): how often it did what."""

    def __init__(self, keeper, server, seed):
        self.shared = memoryview(mmap.mmap(-1, 4096)).cast("Q")
        here, there = multiprocessing.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with_parent()
                here.close()
                asyncio.run(Relay(self.shared, server, seed).serve(there))
            finally:
                os._exit(1)
        there.close()
        keeper.process(self.pid)
        if not here.poll(20):
            raise RuntimeError("the proxy does not start")
        self.address = f"127.0.0.1:{here.recv()}"
        here.close()

    def weather(self, rates):
        for k, name in enumerate(RATES):
            self.shared[k] = round(rates.get(name, 0) * SCALE)

    def counts(self):
        return {name: self.shared[32 + k] for k, name in enumerate(RATES) if self.shared[32 + k]}

    def connections(self):
        return self.shared[31]

    def end(self):
        if self.pid:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
            self.pid = 0


class Relay:
    """In the proxy's process."""

    def __init__(self, shared, server, seed):
        self.shared, self.rng = shared, random.Random(f"{seed} proxy")
        self.host, self.port = server.rsplit(":", 1)
        self.tasks = set()

    async def serve(self, pipe):
        server = await asyncio.start_server(self.accepted, "127.0.0.1", 0, limit=CHUNK * 4)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    def happens(self, what, factor=1.0):
        k = RATES.index(what)
        if self.rng.random() * SCALE >= self.shared[k] * factor:
            return False
        self.shared[32 + k] += 1
        return True

    def later(self, coroutine):
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def accepted(self, reader, writer):
        self.shared[31] += 1
        try:
            if self.happens("hold"):
                await asyncio.sleep(self.rng.uniform(0.02, 0.5))
            server_reader, server_writer = await asyncio.open_connection(self.host, self.port, limit=CHUNK * 4)
        except OSError:
            writer.transport.abort()
            return
        link = Link(self, reader, writer, server_reader, server_writer)
        await link.run()


class Link:
    """One connection of a client and its other half to the server."""

    def __init__(self, relay, reader, writer, server_reader, server_writer):
        self.relay, self.rng = relay, relay.rng
        self.reader, self.writer, self.server_reader, self.server_writer = reader, writer, server_reader, server_writer
        self.frames, self.sent, self.sent_bytes = Frames(), [], 0
        self.lose_next = self.swallowing = False
        self.kept_for_later = False

    async def run(self):
        pumps = [asyncio.ensure_future(self.up()), asyncio.ensure_future(self.down())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self.writer.transport.abort()
            if not self.kept_for_later:
                self.server_writer.transport.abort()
            if 0 < self.sent_bytes <= REPLAY_BYTES_MAX and self.relay.happens("replay"):
                self.relay.later(self.replay(b"".join(self.sent)))

    def remember(self, data):
        """For a replay, as long as it is not too much."""
        self.sent_bytes += len(data)
        if self.sent_bytes <= REPLAY_BYTES_MAX:
            self.sent.append(data)

    def cut_here(self, data):
        """The part of the data that still gets through, or None if it does not end here."""
        return data[:self.rng.randrange(len(data) + 1)] if self.relay.happens("cut") else None

    async def delayed(self):
        if self.relay.happens("delay"):
            await asyncio.sleep(self.rng.uniform(0, 0.04))

    async def up(self):
        """From the client to the server."""
        try:
            while data := await self.reader.read(CHUNK):
                await self.delayed()
                mutations = self.frames.feed(data)
                if self.swallowing or self.relay.happens("swallow"):
                    self.swallowing = True
                    continue
                if self.relay.happens("late", 1 if mutations else 0.3) or self.frames.closes and self.relay.happens("late_close"):
                    self.kept_for_later = True
                    self.relay.later(self.deliver_late(data))
                    return
                part = self.cut_here(data)
                passed = data if part is None else part
                self.remember(passed)
                self.server_writer.write(passed)
                await self.server_writer.drain()
                if part is not None:
                    # Let what was sent arrive: an abort could overtake it.
                    await asyncio.sleep(0.005)
                    return
                if mutations and self.relay.happens("lose"):
                    self.lose_next = True
        except (OSError, asyncio.IncompleteReadError):
            pass

    async def down(self):
        """From the server to the client."""
        try:
            while data := await self.server_reader.read(CHUNK):
                if self.lose_next:
                    return
                await self.delayed()
                if self.swallowing:
                    continue
                part = self.cut_here(data)
                self.writer.write(data if part is None else part)
                await self.writer.drain()
                if part is not None:
                    await asyncio.sleep(0.005)
                    return
        except (OSError, asyncio.IncompleteReadError):
            pass

    async def deliver_late(self, data):
        """The client has been cut off; the rest of what it sent comes through a while later."""
        await asyncio.sleep(self.rng.uniform(0.01, 1.0))
        await self.flush(self.server_writer, self.server_reader, data)

    async def replay(self, data):
        await asyncio.sleep(self.rng.uniform(0, 0.5))
        try:
            reader, writer = await asyncio.open_connection(self.relay.host, self.relay.port)
        except OSError:
            return
        await self.flush(writer, reader, data)

    @staticmethod
    async def flush(writer, reader, data):
        """Sends, lets the server answer for a moment, throws the answers away."""
        try:
            writer.write(data)
            await writer.drain()
            end = asyncio.get_running_loop().time() + 0.5
            while (left := end - asyncio.get_running_loop().time()) > 0:
                if not await asyncio.wait_for(reader.read(CHUNK), left):
                    break
        except (OSError, asyncio.TimeoutError):
            pass
        writer.transport.abort()
