// A Node that remembers: frames go out on 3, requests come in on 4; see
// python.py for what they are. Children that inherit the streams write to 2.
'use strict'
{ // what is declared in here is not in the code's way
  const fs = require('fs'), vm = require('vm'), util = require('util'), { createRequire } = require('module')

  /* show.js */

  function raw(b) {
    for (let at = 0; at < b.length;) {
      try {
        at += fs.writeSync(3, b, at)
      } catch (e) {
        if (e.code !== 'EAGAIN') process.exit(1)
      }
    }
  }

  function send(kind, body) {
    const head = Buffer.alloc(5)
    head.write(kind, 0, 'latin1')
    head.writeUInt32BE(body.length, 1)
    raw(Buffer.concat([head, body]))
  }

  const tell = (what, more) => send('d', Buffer.from(JSON.stringify({ what, ...more })))
  const part = (mime, data) => tell('show', { mime, data: Buffer.from(data).toString('base64') })

  for (const [stream, kind] of [[process.stdout, 'o'], [process.stderr, 'e']]) {
    stream.write = (chunk, encoding, done) => {
      const b = typeof chunk === 'string' ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8') : Buffer.from(chunk)
      for (let at = 0; at < b.length; at += 1 << 16) send(kind, b.subarray(at, at + (1 << 16)))
      if (typeof encoding === 'function') done = encoding
      if (done) process.nextTick(done)
      return true
    }
  }

  const needed = createRequire(process.cwd() + '/code.js')
  globalThis.require = needed
  const display = displays(part)
  globalThis.display = display

  let stop = null // ends the wait of code that waits
  process.on('SIGINT', () => { if (stop) stop(Object.assign(new Error('interrupted'), { name: 'Interrupted' })) })
  process.on('unhandledRejection', (e) => complain(e))
  process.on('uncaughtException', (e) => complain(e))

  function complain(e) {
    const was = failure(e)
    process.stderr.write(was.traceback + '\n')
    tell('error', brief(was))
  }

  function evaluate(code) {
    const options = { filename: '<code>', breakOnSigint: true }
    // What can be read as a call of something named await is none.
    if (/\bawait\s*[([+\-`/]/.test(code)) return waiting(code)
    try {
      return new vm.Script(code, { filename: '<code>' }).runInThisContext(options)
    } catch (e) {
      if (!(e instanceof SyntaxError) || !/await/.test(code)) throw e
      return waiting(code)
    }
  }

  // Node's own prompt knows how code that waits keeps what it declares. It is
  // told to wait in any case, so that errors come back; by which way they do
  // depends on the version.
  let prompt = null, failed = null
  function waiting(code) {
    if (!prompt) {
      const { PassThrough, Writable } = needed('stream')
      const nowhere = new Writable({ write: (chunk, encoding, done) => done() })
      prompt = needed('repl').start({ input: new PassThrough(), output: nowhere, prompt: '', terminal: false, useGlobal: true })
      if (prompt._domain) prompt._domain.on('error', (e) => failed(e))
      globalThis.require = needed // not the prompt's own
    }
    return new Promise((done, no) => {
      failed = no
      prompt.eval('await 0; ' + code, prompt.context, '<code>', (e, v) => e ? no(e.err || e) : done(v))
    })
  }

  async function run(req) {
    for (const v of req.env || []) process.env[v.slice(0, v.indexOf('='))] = v.slice(v.indexOf('=') + 1)
    let code = 0
    try {
      if (req.dir) process.chdir(req.dir)
      globalThis.stdin = req.stdin ? Buffer.from(req.stdin, 'base64').toString() : ''
      let v = evaluate(req.code)
      if (v !== null && typeof v === 'object' && typeof v.then === 'function') {
        v = await Promise.race([v, new Promise((_, no) => { stop = no })])
      }
      if (v !== undefined && !/^['"]use strict['"]$/.test(v)) display(v)
    } catch (e) {
      complain(e)
      code = 1
    }
    stop = null
    send('x', Buffer.from(JSON.stringify({ code })))
  }

  let got = Buffer.alloc(0), turn = Promise.resolve()
  const input = new (require('net').Socket)({ fd: 4, readable: true, writable: false })
  input.on('data', (b) => {
    got = Buffer.concat([got, b])
    while (got.length >= 4 && got.length >= 4 + got.readUInt32BE(0)) {
      const end = 4 + got.readUInt32BE(0), req = JSON.parse(got.subarray(4, end).toString())
      got = got.subarray(end)
      turn = turn.then(() => run(req))
    }
  })
  input.on('end', () => process.exit(0))
  send('r', Buffer.alloc(0))
}
