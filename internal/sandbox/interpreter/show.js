// What code shows besides what it prints, and what went wrong in it.

function displays(part) {
  return (...values) => {
    for (const v of values) {
      if (Buffer.isBuffer(v) && v.subarray(1, 4).toString('latin1') === 'PNG') part('image/png', v)
      else if (v !== null && typeof v === 'object' && (Array.isArray(v) || Object.getPrototypeOf(v) === Object.prototype)) part('application/json', JSON.stringify(v))
      else part('text/plain', typeof v === 'string' ? v : util.inspect(v))
    }
  }
}

function failure(e) {
  const name = e && e.name || 'Error', message = e && e.message !== undefined ? String(e.message) : util.inspect(e)
  const traceback = (e && e.stack || name + ': ' + message).split('\n').filter((l) => !/\(?node:|\[eval\]/.test(l)).join('\n')
  return { name: e && e.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED' ? 'Interrupted' : name, message, traceback }
}

// brief is as much of a failure as is told of it.
function brief(was) {
  return { ...was, message: was.message.slice(0, 4000), traceback: was.traceback.slice(-16000) }
}
