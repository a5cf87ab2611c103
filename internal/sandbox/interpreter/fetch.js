  // fetch of a Node that does not know NODE_USE_ENV_PROXY goes by the environment
  // too: its dispatcher is replaced, when fetch is first called, by one that makes
  // tunnels through the proxy, since a sandbox has no other way out.
  {
    const load = require, plain = globalThis.fetch, key = Symbol.for('undici.globalDispatcher.1')
    const proxy = () => process.env.HTTPS_PROXY || process.env.HTTP_PROXY || ''
    const direct = (host) => (process.env.NO_PROXY || '').split(',').includes(host.replace(/^\[|\]$/g, ''))
    const tunnel = (at, host, port, done) => {
      const socket = load('net').connect({ host: at.hostname, port: Number(at.port) })
      let head = Buffer.alloc(0)
      const failed = (e) => { socket.destroy(); done(e) }
      const read = (b) => {
        head = Buffer.concat([head, b])
        const end = head.indexOf('\r\n\r\n')
        if (end < 0) return head.length > 1 << 16 && failed(new Error('the proxy answers with too much'))
        socket.off('data', read).off('error', failed).off('close', closed)
        const first = head.subarray(0, head.indexOf('\r\n')).toString('latin1')
        if (!/^HTTP\/1\.1 200 /.test(first)) return failed(new Error('the proxy refuses: ' + first.slice(9)))
        if (end + 4 < head.length) socket.unshift(head.subarray(end + 4))
        done(null, socket)
      }
      const closed = () => done(new Error('the proxy closed the connection'))
      socket.on('data', read).once('error', failed).once('close', closed)
      socket.write(`CONNECT ${host}:${port} HTTP/1.1\r\nHost: ${host}:${port}\r\n\r\n`)
    }
    const connect = ({ hostname, protocol, port, servername }, done) => {
      const secure = protocol === 'https:', to = Number(port) || (secure ? 443 : 80)
      const use = (e, socket) => {
        if (e) return done(e)
        if (!secure) return done(null, socket)
        const s = load('tls').connect({ socket, servername: servername || hostname })
        s.once('error', done).once('secureConnect', () => { s.off('error', done); done(null, s) })
      }
      if (!direct(hostname)) return tunnel(new URL(proxy()), hostname, to, use)
      const socket = load('net').connect({ host: hostname, port: to })
      socket.once('error', done).once('connect', () => { socket.off('error', done); use(null, socket) })
    }
    if (plain) globalThis.fetch = function fetch(...args) {
      if (proxy()) {
        void globalThis.Request // loads what sets the dispatcher
        const Agent = globalThis[key]?.constructor
        if (Agent?.name === 'Agent') globalThis[key] = new Agent({ connect })
      }
      globalThis.fetch = plain
      return plain(...args)
    }
  }
