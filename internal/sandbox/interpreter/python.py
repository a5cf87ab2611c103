# The interpreter that waits for code, and the one that remembers.
#
# This process starts the ones that run code, one for each piece of code or one
# for all of them, and passes on what those print: frames of a kind (1 byte), a
# length (4 bytes) and so many bytes. Requests are a length (4 bytes) and a body.
# Requests are fields, each after its length: code, standard input, folder, and
# any number of NAME=value. Nothing it is told by the code is trusted by whoever
# reads the frames.
#
# What is not needed for the first piece of code is imported later: while nobody
# waits, or when it is needed.
import sys, os, struct, select, signal, builtins

MODE = sys.argv[1]
IN, OUT = os.dup(0), os.dup(1)
NULL = os.open(os.devnull, os.O_RDWR)
os.dup2(NULL, 0)
os.dup2(NULL, 1)


def frame(kind, body):
    return kind + struct.pack('>I', len(body)) + body if body else b''


def everything(frames):
    while frames:
        frames = frames[os.write(OUT, frames):]


def send(kind, body):
    everything(frame(kind, body))


def waiting(fd):
    """What a pipe holds."""
    b = b''
    try:
        while not len(b) & 0xffff:  # it holds that much mostly
            more = os.read(fd, 1 << 16)
            if not more:
                break
            b += more
    except BlockingIOError:
        pass
    return b


def request():
    """The next request. Whoever asks waits for the answer before asking again."""
    b, size = b'', 4
    while len(b) < size:
        more = os.read(IN, max(size - len(b), 1 << 16))
        if not more:
            os._exit(0)
        b += more
        if size == 4 and len(b) >= 4:
            size += struct.unpack_from('>I', b)[0]
    fields, at = [], 4
    while at < len(b):
        n = struct.unpack_from('>I', b, at)[0]
        fields.append(b[at + 4:at + 4 + n])
        at += 4 + n
    return dict(code=fields[0].decode(errors='replace'), stdin=fields[1], dir=os.fsdecode(fields[2]), env=[os.fsdecode(v) for v in fields[3:]])


def ahead():
    """Imports what most code wants, unless somebody waits already."""
    for name in ('types', 'json', 'linecache', 'traceback', 'io', 'base64', 're', 'collections', 'functools', 'itertools', 'math', 'time', 'datetime', 'random', 'threading'):
        if select.select([IN], [], [], 0)[0]:
            return
        __import__(name)


class Turns:
    """Lets code that remembers tell the end of a piece by itself, with what it
    printed last, where the process that passes that on would have to be woken
    first. Only who has the turn reads the pipes, and sends what was in them."""

    def __init__(self, pipes):
        self.lock, self.pipes, self.shown = None, [r for r, _ in pipes[:2]], select.poll()
        self.shown.register(pipes[2][0], select.POLLIN)
        if MODE == 'state':
            try:
                self.lock = os.memfd_create('turns')  # the kernel unlocks it when its holder ends
            except OSError:
                pass

    def __enter__(self):
        if self.lock is not None:
            os.lockf(self.lock, os.F_LOCK, 0)

    def __exit__(self, *_):
        if self.lock is not None:
            os.lockf(self.lock, os.F_ULOCK, 0)

    def end(self, line):
        """Sends what waits, and the end; False when that is left to the other one."""
        if self.lock is None:
            return False
        try:
            os.lockf(self.lock, os.F_TLOCK, 0)
        except OSError:  # the other one has the turn, or the code closed what is not its own
            return False
        try:
            if self.shown.poll(0):
                return False
            everything(b''.join(frame(k, waiting(fd)) for k, fd in zip((b'o', b'e'), self.pipes)) + frame(b'x', line))
        finally:
            os.lockf(self.lock, os.F_ULOCK, 0)
        return True


class Shown:
    """What the code shows, besides what it prints: through a pipe of its own."""

    nothing = None  # the standard input of code that is given none

    def __init__(self, fd, turns=None):
        self.fd, self.turns = fd, turns

    def tell(self, what, **more):
        import json
        line = json.dumps(dict(more, what=what)).encode() + b'\n'
        while line:
            line = line[os.write(self.fd, line):]

    def done(self, code):
        line = b'{"code": %d, "what": "done"}' % code
        if not self.turns.end(line):
            os.write(self.fd, line + b'\n')

    def data(self, mime, data):
        import base64
        if isinstance(data, str):
            data = data.encode('utf-8', 'replace')
        self.tell('show', mime=mime, data=base64.b64encode(data).decode())

    def __call__(self, *values):
        for v in values:
            self.one(v)

    def one(self, v):
        for name, mime in (('_repr_png_', 'image/png'), ('_repr_jpeg_', 'image/jpeg'), ('_repr_svg_', 'image/svg+xml'), ('_repr_json_', 'application/json'), ('_repr_html_', 'text/html'), ('_repr_markdown_', 'text/markdown')):
            make = getattr(v, name, None)
            if make is None or isinstance(v, type):
                continue
            try:
                data = make()
            except Exception:
                continue
            if data is None:
                continue
            if mime == 'application/json' and not isinstance(data, str):
                import json
                data = json.dumps(data)
            return self.data(mime, data)
        if isinstance(v, (dict, list)):
            try:
                import json
                return self.data('application/json', json.dumps(v))
            except (TypeError, ValueError):
                pass
        save = getattr(v, 'savefig', None) or getattr(v, 'save', None)
        if save is not None and type(v).__module__.partition('.')[0] in ('matplotlib', 'PIL'):
            import io
            b = io.BytesIO()
            save(b, format='png')
            return self.data('image/png', b.getvalue())
        self.data('text/plain', repr(v))

    def figures(self):
        plt = sys.modules.get('matplotlib.pyplot')
        if plt is None:
            return
        for n in plt.get_fignums():
            self.one(plt.figure(n))
        plt.close('all')


def named(source):
    Shown.source = source
    if 'linecache' in sys.modules:
        remember()
    return '<code>'


def remember():
    """Lets tracebacks show lines of the code."""
    import linecache
    linecache.cache['<code>'] = (len(Shown.source), None, Shown.source.splitlines(True), '<code>')


def complain(shown, e):
    """Prints a traceback that begins with the code, and tells what went wrong."""
    import traceback
    remember()
    tb = e.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename != '<code>':
        tb = tb.tb_next
    text = ''.join(traceback.format_exception(type(e), e, tb))
    try:
        sys.stderr.write(text)
    except Exception:
        pass
    shown.tell('error', name=type(e).__name__, message=str(e)[:4000], traceback=text[-16000:])


def flush():
    for f in (sys.stdout, sys.stderr):
        try:
            f.flush()
        except Exception:
            pass


def leaving(e, shown):
    """The exit code that SystemExit asks for."""
    if e.code is None:
        return 0
    if isinstance(e.code, int):
        return e.code & 0xff
    sys.stderr.write(str(e.code) + '\n')
    return 1


def prepare(req):
    for v in req['env']:
        name, _, value = v.partition('=')
        os.environ[name] = value
    if req['dir']:
        os.chdir(req['dir'])
    if req['stdin']:
        fd = os.memfd_create('stdin')
        with open(fd, 'wb', closefd=False) as f:
            f.write(req['stdin'])
        os.lseek(fd, 0, 0)
        os.dup2(fd, 0)
        os.close(fd)
    # The streams were made for what this process began with.
    if req['stdin'] or sys.stdin is not Shown.nothing or sys.stdin.closed:
        sys.stdin = open(0, 'r', encoding='utf-8', errors='surrogateescape', closefd=False)
        Shown.nothing = None if req['stdin'] else sys.stdin


def streams():
    sys.stdout = open(1, 'w', encoding='utf-8', errors='surrogateescape', closefd=False, buffering=1)
    sys.stderr = open(2, 'w', encoding='utf-8', errors='backslashreplace', closefd=False, buffering=1)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr


def fresh_main(shown):
    m = type(sys)('__main__')
    sys.modules['__main__'] = m
    builtins.display = shown
    sys.path[0:1] = ['']
    os.environ.setdefault('MPLBACKEND', 'agg')
    return m.__dict__


def once(req, shown):
    """Runs one piece of code as a program of its own would be."""
    status = 0
    try:
        prepare(req)
        streams()
        space = fresh_main(shown)
        sys.argv = ['<code>']
        name = named(req['code'])
        exec(req['compiled'] or compile(req['code'], name, 'exec', dont_inherit=True), space)
        shown.figures()
    except SystemExit as e:
        status = leaving(e, shown)
    except BaseException as e:
        complain(shown, e)
        status = 130 if isinstance(e, KeyboardInterrupt) else 1
    try:
        if 'threading' in sys.modules:
            sys.modules['threading']._shutdown()
        import atexit
        atexit._run_exitfuncs()
    except BaseException:
        pass
    flush()
    os._exit(status)


def many(shown):
    """Runs piece after piece in one space, and shows what each ends with."""
    import ast
    from _signal import signal as on, SIGINT, SIG_IGN, default_int_handler  # without what else goes by those names
    streams()
    space = fresh_main(shown)
    on(SIGINT, SIG_IGN)
    own = os.getpid()
    while True:
        req = request()
        status = 0
        try:
            prepare(req)
            on(SIGINT, default_int_handler)
            tree = ast.parse(req['code'], named(req['code']))
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, '<code>', 'exec', dont_inherit=True), space)
            if last is not None:
                v = eval(compile(last, '<code>', 'eval', dont_inherit=True), space)
                if v is not None:
                    space['_'] = v
                    shown.one(v)
            shown.figures()
        except SystemExit as e:
            status = leaving(e, shown)
        except BaseException as e:
            complain(shown, e)
            status = 130 if isinstance(e, KeyboardInterrupt) else 1
        on(SIGINT, SIG_IGN)
        flush()
        if os.getpid() != own:  # the code forked, and this is not the one that goes on
            os._exit(status)
        os.dup2(NULL, 0)
        shown.done(status)


def others():
    """Whether anything but this process and the first one lives here."""
    try:
        os.kill(-1, 0)  # nobody but those two is left out
    except ProcessLookupError:
        return False
    except OSError:
        pass
    for name in os.listdir('/proc'):
        if not name.isdigit() or int(name) in (1, os.getpid()):
            continue
        try:
            with open('/proc/' + name + '/stat', 'rb') as f:
                if f.read().rpartition(b')')[2].split()[0] != b'Z':
                    return True
        except OSError:
            pass
    return False


def start(req):
    """Starts a process for code, and gives what comes of it."""
    pipes = [os.pipe() for _ in range(3)]
    for r, _ in pipes:
        os.set_blocking(r, False)
    turns = Turns(pipes)
    pid = os.fork()
    if pid == 0:
        if MODE == 'fork':
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(pipes[0][1], 1)
        os.dup2(pipes[1][1], 2)
        show = os.dup(pipes[2][1])
        for _, w in pipes:
            os.close(w)
        if MODE == 'fork':
            import gc
            gc.enable()
            for fd in [r for r, _ in pipes] + [OUT, IN]:
                os.close(fd)
            once(req, Shown(show))
        many(Shown(show, turns))
    for _, w in pipes:
        os.close(w)
    return pid, [r for r, _ in pipes], turns


class Child:
    def __init__(self, req=None):
        self.pid, self.pipes, self.turns = start(req)
        self.fd = os.pidfd_open(self.pid)
        self.line = b''
        self.poll = select.poll()
        for fd in self.pipes + [self.fd]:
            self.poll.register(fd, select.POLLIN)

    def drain(self, fd):
        """Passes on what is there; False when there is no more for now."""
        try:
            b = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            b = b''
        if not b:
            self.poll.unregister(fd)
            os.close(fd)
            self.pipes[self.pipes.index(fd)] = -1
            return False
        if fd == self.pipes[0]:
            send(b'o', b)
        elif fd == self.pipes[1]:
            send(b'e', b)
        else:
            self.shown(b)
        return True

    def printed(self):
        for fd in self.pipes[:2]:
            while fd >= 0 and self.drain(fd):
                pass

    def shown(self, b):
        *lines, self.line = (self.line + b).split(b'\n')
        for l in lines:
            if l.startswith(b'{"code"') and l.endswith(b'"what": "done"}'):
                self.printed()
                send(b'x', l)
            else:
                send(b'd', l)
        if len(self.line) > 16 << 20:
            os._exit(3)

    def attend(self):
        """Until the process has ended: how it did."""
        while True:
            ready = [fd for fd, _ in self.poll.poll()]
            with self.turns:
                for fd in ready:
                    if fd != self.fd:
                        self.drain(fd)
            if self.fd in ready:
                break
        with self.turns:
            self.printed()
            while self.pipes[2] >= 0 and self.drain(self.pipes[2]):
                pass
        self.poll.unregister(self.fd)
        for fd in self.pipes + [self.fd]:
            if fd >= 0:
                os.close(fd)
        _, status, use = os.wait4(self.pid, 0)
        end = dict(code=0, signal=0, cpu=use.ru_utime + use.ru_stime, rss=use.ru_maxrss * 1024)
        if os.WIFSIGNALED(status):
            end['signal'] = os.WTERMSIG(status)
        else:
            end['code'] = os.WEXITSTATUS(status)
        return end


def told(end, gone=False, dirty=False):
    send(b'x', b'{"code":%d,"signal":%d,"cpu":%f,"rss":%d,"gone":%s,"dirty":%s}' % (
        end['code'], end['signal'], end['cpu'], end['rss'], b'true' if gone else b'false', b'true' if dirty else b'false'))


signal.signal(signal.SIGINT, signal.SIG_IGN)
os.pidfd_open  # what this needs is there, or it ends here
everything(b'r' + bytes(4))
if MODE == 'state':
    end = Child().attend()
    told(end, gone=True)
    os._exit(0)
def compiled(code):
    """Compiles code here, where that touches no memory that is shared. What is
    wrong with it is told by the process it is for."""
    if len(code) > 1 << 16:
        return None
    try:
        return compile(code, '<code>', 'exec', dont_inherit=True)
    except Exception:
        return None


def provide():
    """Makes what programs call the host's tools with, for those that ask for it."""
    m = type(sys)('_gatehouse_tools')
    m.__file__ = '<tools>'
    exec(compile(sys.argv.pop(), m.__file__, 'exec', dont_inherit=True), m.__dict__)
    sys.modules[m.__name__] = m


import gc
gc.disable()  # it would touch everything, and with it copy what is shared
ahead()
try:
    provide()
except Exception:  # a Python without sockets; a program that needs it finds a file
    pass
while True:
    gc.freeze()  # nor does that of the processes look at what was here before them
    req = request()
    req['compiled'] = compiled(req['code'])
    end = Child(req).attend()
    dirty = others()
    told(end, dirty=dirty)
    if dirty:
        os._exit(0)
    ahead()
