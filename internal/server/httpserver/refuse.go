package httpserver

import (
	"fmt"
	nethttp "net/http"
	"strconv"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/mcp/protocol"
)

// writeFault answers with a JSON-RPC error without an ID.
func writeFault(w nethttp.ResponseWriter, status, code int, msg string) {
	answerFault(w, &protocol.Fault{Status: status, Code: code, Message: msg})
}

func answerFault(w nethttp.ResponseWriter, f *protocol.Fault) {
	status := f.Status
	if status == 0 {
		status = 400
	}
	answerJSON(w, status, protocol.Respond(f))
}

// jsonType is shared by all answers; net/http does not change header values.
var jsonType = []string{"application/json"}

func answerJSON(w nethttp.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = jsonType
	if own, ok := w.(declarer); ok {
		own.Declare(len(body))
	} else {
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	w.WriteHeader(status)
	w.Write(body)
}

// answerEvent answers with a stream of one event.
func answerEvent(w nethttp.ResponseWriter, msg []byte) {
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = eventType, noCache
	w.WriteHeader(200)
	fmt.Fprintf(w, "data: %s\n\n", flattened(msg))
}

// declarer is a response whose length can be set without a header.
type declarer interface{ Declare(length int) }

func notAllowed(w nethttp.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	writeFault(w, 405, protocol.CodeInvalidRequest, "this method is not served here; allowed: "+allow)
}

// clip shortens and quotes a client's text before it is returned in a message.
func clip(s string) string {
	return strconv.QuoteToASCII(displaytext.Cut(s, 100, "..."))
}
