// What a program calls the tools of its caller with: await tools.NAME({ argument: value }).
//
// A call returns the tool's result, or its text if the tool declares no schema for it, and throws a ToolError. Calls may
// be made concurrently. Everything here runs with the permissions of the program: the host checks each call.
'use strict'
const net = require('net'), vm = require('vm'), fs = require('fs')

class ToolError extends Error { name = 'ToolError' }
// A question was not answered in time, or the time of the program is up.
class Expired extends ToolError { name = 'Expired' }
class LimitReached extends ToolError { name = 'LimitReached' }
const kinds = { expired: Expired, limited: LimitReached }

let conn, port = 0, program = '', last = 0, busy = 0
const calls = new Map()

function fail(e) {
  conn = undefined
  for (const c of calls.values()) c.reject(new LimitReached(e ? e.message : 'the host has closed the connection'))
  calls.clear()
}

function connect() {
  const c = net.connect({ host: '127.0.0.1', port, noDelay: true })
  let data = Buffer.alloc(0)
  c.on('data', (b) => {
    data = data.length ? Buffer.concat([data, b]) : b
    while (data.length >= 4 && data.length >= 4 + data.readUInt32BE(0)) {
      const size = data.readUInt32BE(0)
      answered(JSON.parse(data.subarray(4, 4 + size).toString()))
      data = data.subarray(4 + size)
    }
  })
  c.on('error', fail).on('close', () => { if (conn === c) fail() })
  return c
}

// used keeps the process alive while messages are being sent or answers are missing.
function used(n) {
  busy += n
  if (conn) busy > 0 ? conn.ref() : conn.unref()
}

function answered(a) {
  const c = calls.get(a.id)
  if (!c) return fail(new Error(a.error || 'an answer to no call'))
  calls.delete(a.id)
  used(-1)
  if (a.error === undefined) return c.resolve(a.value)
  c.error.message = c.tool + ': ' + a.error
  c.reject(Object.assign(new (kinds[a.kind] || ToolError)(c.error.message), { stack: undefined }, trace(a.kind, c.error)))
}

// trace gives an error the stack of the call.
const trace = (kind, e) => ({ stack: (kinds[kind] || ToolError).name + ': ' + e.message + '\n' + (e.stack || '').split('\n').slice(1).join('\n') })

function send(message) {
  conn ||= connect()
  const b = Buffer.from(JSON.stringify(message)), head = Buffer.alloc(4)
  head.writeUInt32BE(b.length)
  used(1)
  conn.write(Buffer.concat([head, b]), () => used(-1))
}

function call(tool, args) {
  const error = new Error(tool)
  const at = error.stack.split('\n').find((l) => l.includes(program + ':'))
  const line = at ? Number(at.slice(at.indexOf(program + ':') + program.length + 1).split(':')[0]) || 0 : 0
  return new Promise((resolve, reject) => {
    const id = ++last
    calls.set(id, { resolve, reject, tool, error })
    send({ id, tool, args: args ?? {}, line })
    used(1)
  })
}

const tools = new Proxy({}, {
  get: (_, name) => typeof name === 'string' && name !== 'then' ? (args) => call(name, args) : undefined,
})

exports.run = (at, path, require, whole) => {
  const args = JSON.parse(fs.readFileSync(path.replace(/[^/]*$/, 'args.json'), 'utf8'))
  port = at
  program = path
  const open = whole ? '' : '(async (tools, args, ToolError, Expired, LimitReached, require) => {'
  const main = new vm.Script(open + fs.readFileSync(path, 'utf8') + (whole ? '' : '\n})'), {
    filename: path, columnOffset: -open.length, importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  }).runInThisContext()
  main(tools, args, ToolError, Expired, LimitReached, require).then((value) => {
    if (value === undefined) return
    calls.set(0, { resolve() {}, reject(e) { throw e }, tool: 'return', error: new Error('return') })
    send({ result: value })
    used(1)
  }, (e) => process.nextTick(() => { throw e }))
}
