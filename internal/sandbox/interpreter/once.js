// A Node that waits for one piece of code and then is the program that the code
// makes: what is read first of the standard input is a length (4 bytes) and a
// request, and the rest of it is the code's.
'use strict'
{
  const fs = require('fs'), vm = require('vm'), util = require('util'), Module = require('module')
  /* show.js */
  const exactly = (n) => {
    const b = Buffer.alloc(n)
    for (let at = 0; at < n;) {
      let got = 0
      try {
        got = fs.readSync(0, b, at, n - at)
      } catch (e) {
        if (e.code !== 'EAGAIN') process.exit(0)
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1)
        continue
      }
      if (got === 0) process.exit(0) // nobody wants it any more
      at += got
    }
    return b
  }
  const req = JSON.parse(exactly(exactly(4).readUInt32BE(0)).toString())
  for (const v of req.env || []) process.env[v.slice(0, v.indexOf('='))] = v.slice(v.indexOf('=') + 1)
  if (req.dir) process.chdir(req.dir)
  // What is shown goes into a file, since the streams are the code's.
  let shown = -1
  const tell = (what, more) => {
    try {
      if (shown < 0) shown = fs.openSync(req.shown, 'ax', 0o600)
      fs.writeSync(shown, JSON.stringify({ what, ...more }) + '\n')
    } catch {} // the disk is full, or the code has closed it
  }
  if (req.shown) {
    globalThis.display = displays((mime, data) => tell('show', { mime, data: Buffer.from(data).toString('base64') }))
    process.on('uncaughtExceptionMonitor', (e) => tell('error', brief(failure(e))))
  }
  const name = process.cwd() + '/code.js'
  const main = new Module(name, null)
  main.filename = name
  main.paths = Module._nodeModulePaths(process.cwd())
  process.mainModule = main
  process.argv = [process.execPath, name]
  for (const given of ['module', 'exports', 'require', '__filename', '__dirname']) delete globalThis[given]
  let modern = false // it can only be read as a module of the new kind
  if (/\b(import|export|await)\b/.test(req.code)) {
    try {
      new vm.Script(Module.wrap(req.code))
    } catch (e) {
      modern = e instanceof SyntaxError
    }
  }
  if (modern) import('data:text/javascript;base64,' + Buffer.from(req.code).toString('base64'))
  else main._compile(req.code, name)
}
