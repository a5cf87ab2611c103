# What a program calls the tools of its caller with: tools.NAME(argument=value).
#
# A call returns the tool's result as Python values, or its text if the tool declares no schema for it, and raises
# ToolError. tools.NAME.later(...) returns at once, and its result() waits; gather() waits for several. Threads may
# call too. Everything here runs with the permissions of the program: the host checks each call.
import _socket, _thread, json, struct, sys

_PROGRAM = None


class ToolError(Exception):
    """A tool refused or failed; its text says why."""


class Expired(ToolError):
    """A question was not answered in time, or the time of the program is up."""


class LimitReached(ToolError):
    """A limit of programs was reached."""


class _Call:
    def __init__(self, tool):
        self.tool, self.done, self.waited, self.answer = tool, False, False, None
        self.turn = _thread.allocate_lock()
        self.turn.acquire()

    def wake(self):
        try:
            self.turn.release()
        except RuntimeError:  # it is awake already
            pass

    def result(self):
        """Waits for the call, and returns its result."""
        _channel.wait(self)
        a = self.answer
        if 'error' in a:
            raise {'expired': Expired, 'limited': LimitReached}.get(a.get('kind'), ToolError)(self.tool + ': ' + a['error'])
        return a.get('value')


class _Channel:
    def __init__(self):
        self.conn, self.last, self.calls, self.data = None, 0, {}, b''
        self.sending, self.reading = _thread.allocate_lock(), _thread.allocate_lock()
        self.port = 0

    def send(self, message):
        if self.conn is None:
            self.conn = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
            self.conn.connect(('127.0.0.1', self.port))
            self.conn.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        b = json.dumps(message).encode()
        self.conn.sendall(struct.pack('>I', len(b)) + b)

    def start(self, tool, args, line):
        c = _Call(tool)
        with self.sending:
            self.last += 1
            self.calls[self.last] = c
            try:
                self.send({'id': self.last, 'tool': tool, 'args': args, 'line': line})
            except BaseException:
                self.calls.pop(self.last, None)
                raise
        return c

    def give(self, value):
        c = self.calls[0] = _Call('return')
        with self.sending:
            self.send({'result': value})
        c.result()

    def part(self, n):
        while len(self.data) < n:
            more = self.conn.recv(1 << 18)
            if not more:
                raise LimitReached('the host has closed the connection')
            self.data += more
        part, self.data = self.data[:n], self.data[n:]
        return part

    def receive(self):
        if len(self.data) < 4:
            self.data = self.part(4) + self.data
        size = struct.unpack('>I', self.data[:4])[0]
        a = json.loads(self.part(4 + size)[4:])
        c = self.calls.pop(a['id'], None)
        if c is None:
            raise LimitReached(a.get('error', 'an answer to no call'))
        c.answer, c.done = a, True
        c.wake()

    def wait(self, c):
        # One of the threads that wait reads the answers of all, and then wakes another one that reads on.
        c.waited = True
        while not c.done:
            if not self.reading.acquire(False):
                c.turn.acquire()
                continue
            try:
                while not c.done:
                    self.receive()
            finally:
                self.reading.release()
                for other in list(self.calls.values()):
                    if other.waited and not other.done:
                        other.wake()
                        break


_channel = _Channel()


def _line():
    f = sys._getframe(2)
    while f is not None and f.f_code.co_filename != _PROGRAM:
        f = f.f_back
    return f.f_lineno if f is not None else 0


class _Tool:
    def __init__(self, name):
        self.__name__ = name

    def __repr__(self):
        return '<tool ' + self.__name__ + '>'

    def __call__(self, *args, **named):
        return _channel.start(self.__name__, _arguments(args, named), _line()).result()

    def later(self, *args, **named):
        """Starts the call; result() of what it returns waits for it."""
        return _channel.start(self.__name__, _arguments(args, named), _line())


def _arguments(args, named):
    if not args:
        return named
    if len(args) > 1 or not isinstance(args[0], dict):
        raise TypeError('arguments of a tool are named: tools.NAME(argument=value)')
    return dict(args[0], **named)


def gather(*calls):
    """Waits for calls that later() has started, and returns their results in order."""
    return [c.result() for c in calls]


def __getattr__(name):
    if name.startswith('_'):
        raise AttributeError(name)
    return _Tool(name)


def _compiled(source):
    """The program, and whether it is a function because it returns a value."""
    awaits = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compile(source, _PROGRAM, 'exec', awaits, True), False
    except SyntaxError as e:
        if 'outside function' not in str(e):
            raise
    import ast
    tree = ast.parse(source, _PROGRAM)
    if not tree.body:
        return compile(tree, _PROGRAM, 'exec'), False
    for kind in (ast.FunctionDef, ast.AsyncFunctionDef):
        f = ast.parse('def __program__(): pass').body[0]
        f = ast.copy_location(kind(**{n: getattr(f, n) for n in f._fields if hasattr(f, n)}), tree.body[0])
        f.body = tree.body
        try:
            return compile(ast.fix_missing_locations(ast.Module([f], [])), _PROGRAM, 'exec', 0, True), True
        except SyntaxError as e:
            if kind is ast.AsyncFunctionDef or 'async' not in str(e):
                raise


def _complain(e):
    """Prints what went wrong, without the frames of this file."""
    import traceback
    frames = [f for f in traceback.extract_tb(e.__traceback__) if f.filename not in (__file__, '<code>')]
    text = ''.join((['Traceback (most recent call last):\n'] + traceback.format_list(frames) if frames else []) +
                   traceback.format_exception_only(type(e), e))
    sys.stderr.write(text)
    import builtins
    shown = getattr(builtins, 'display', None)
    if shown is not None:
        shown.tell('error', name=type(e).__name__, message=str(e)[:4000], traceback=text[-16000:])


def _run(port, program, space):
    global _PROGRAM
    _PROGRAM, _channel.port = program, port
    space.update(tools=sys.modules[__name__], ToolError=ToolError, Expired=Expired, LimitReached=LimitReached)
    try:
        with open(program.rpartition('/')[0] + '/args.json', encoding='utf-8') as f:
            space['args'] = json.load(f)
        with open(program, encoding='utf-8') as f:
            code, returns = _compiled(f.read())
        value = eval(code, space)
        if returns:
            value = space['__program__']()
        if value is not None and hasattr(value, '__await__'):
            import asyncio
            value = asyncio.run(value)
        if value is not None:
            _channel.give(value)
    except SystemExit:
        raise
    except BaseException as e:
        _complain(e)
        sys.exit(1)
