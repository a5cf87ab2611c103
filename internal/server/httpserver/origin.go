package httpserver

import (
	"fmt"
	"net"
	nethttp "net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
)

// origin is the origin of a web page, in the form that browsers send.
type origin struct {
	scheme, host string
	port         uint16 // 0: none was given, and the scheme has no default
}

// parseOrigin parses an Origin header. Browsers write it in one way only: in lower case, with nothing
// but scheme, host and port, and addresses in their shortest form. Any other form does not come from a
// browser, and is refused rather than interpreted.
func parseOrigin(s string) (o origin, ok bool) {
	scheme, rest, found := strings.Cut(s, "://")
	if !found || !isScheme(scheme) {
		return o, false
	}
	host, port, ok := splitPort(rest)
	if !ok || !isHost(host) {
		return o, false
	}
	o = origin{scheme: scheme, host: host, port: port}
	if port == 0 {
		o.port = defaultPort(scheme)
	}
	return o, true
}

func defaultPort(scheme string) uint16 {
	switch scheme {
	case "http":
		return 80
	case "https":
		return 443
	}
	return 0
}

// splitPort splits host[:port]; the brackets of an IPv6 address stay.
func splitPort(s string) (host string, port uint16, ok bool) {
	host = s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		n, err := strconv.ParseUint(s[i+1:], 10, 16)
		if err != nil || n == 0 || s[i+1] == '0' || s[i+1] == '+' {
			return "", 0, false
		}
		host, port = s[:i], uint16(n)
	}
	return host, port, true
}

func isScheme(s string) bool {
	for i, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return s != ""
}

// isHost reports whether s is a lower-case name without empty labels, or an address in its canonical
// form.
func isHost(s string) bool {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		a, err := netip.ParseAddr(inner)
		return ok && err == nil && a.Is6() && a.Zone() == "" && a.String() == inner
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" {
			return false
		}
	}
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_') {
			return false
		}
	}
	return len(s) <= 253
}

// loopback reports whether a host is this machine: localhost or an address in 127.0.0.0/8 or ::1. Other
// names do not count, even if they begin with localhost.
func loopback(host string) bool {
	if host == "localhost" || host == "127.0.0.1" {
		return true
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && a.Unmap().IsLoopback()
}

// loopbackBind reports whether only this machine can reach a listener on host.
func loopbackBind(host string) bool { return host == "" || loopback(host) }

// origins decides which web pages may call.
type origins struct {
	listed map[origin]bool
	any    bool
	local  bool // only this machine reaches the listener; its own pages may call
}

func newOrigins(list []string, local bool) (origins, error) {
	o := origins{listed: map[origin]bool{}, local: local}
	for _, s := range list {
		if s == "*" {
			o.any = true
			continue
		}
		parsed, ok := parseOrigin(strings.ToLower(strings.TrimSuffix(s, "/")))
		if !ok {
			return o, fmt.Errorf(
				"origin %q: expected scheme://host or scheme://host:port, such as https://app.example.com, or *",
				s,
			)
		}
		o.listed[parsed] = true
	}
	return o, nil
}

// Constant header values; net/http does not modify them.
var (
	varyOrigin   = []string{"Origin"}
	varyContext  = []string{"Origin, X-MCP-Context"}
	anyOrigin    = []string{"*"}
	exposed      = []string{"Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Retry-After, WWW-Authenticate"}
	isTrue       = []string{"true"}
	allowMethods = []string{"POST, GET, DELETE, OPTIONS"}
	aDay         = []string{"86400"}
)

// admit decides about the Origin headers of a request and writes the headers that the browser needs
// into h, the header of the answer. A request without Origin does not come from a web page of another
// origin. Other ports of loopback are foreign, because a sandbox or a server with untrusted code may
// listen there.
func (o *origins) admit(h nethttp.Header, r *nethttp.Request) bool {
	h["Vary"] = varyOrigin
	values := r.Header["Origin"]
	if len(values) == 0 {
		return true
	}
	if len(values) > 1 {
		return false
	}
	parsed, ok := parseOrigin(values[0])
	listed := ok && o.listed[parsed]
	switch {
	case listed:
		h["Access-Control-Allow-Credentials"] = isTrue
		h["Access-Control-Allow-Origin"] = values
	case ok && o.local && loopback(parsed.host) && parsed.own(r):
		h["Access-Control-Allow-Origin"] = values
	case o.any && ok: // null is every document without an origin of its own, such as a view of an MCP App
		h["Access-Control-Allow-Origin"] = anyOrigin
	default:
		return false
	}
	h["Access-Control-Expose-Headers"] = exposed
	return true
}

// own reports whether a page of this origin came from the address to which the request goes. Host was
// checked before, so it is a name of this listener.
func (o origin) own(r *nethttp.Request) bool {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	host, port, ok := splitPort(strings.ToLower(r.Host))
	if port == 0 {
		port = defaultPort(scheme)
	}
	return ok && o.scheme == scheme && o.host == host && o.port == port
}

// requestHeaders are the headers that a page may send.
const requestHeaders = "Accept, Authorization, Content-Type, Last-Event-ID, Mcp-Method, Mcp-Name, " +
	"MCP-Protocol-Version, Mcp-Session-Id, Traceparent, Tracestate, X-API-Key, X-MCP-Context"

// preflight answers OPTIONS.
func (d *Server) preflight(w nethttp.ResponseWriter, r *nethttp.Request) {
	h := w.Header()
	if h["Access-Control-Allow-Origin"] == nil {
		h["Allow"] = allowMethods
		w.WriteHeader(204)
		return
	}
	h["Access-Control-Allow-Methods"] = allowMethods
	h["Access-Control-Allow-Headers"] = []string{
		requestHeaders + paramHeaders(r.Header["Access-Control-Request-Headers"]),
	}
	h["Access-Control-Max-Age"] = aDay
	w.WriteHeader(204)
}

// paramHeaders returns the Mcp-Param headers that a page asks to send; their names depend on the tools'
// arguments.
func paramHeaders(asked []string) string {
	var out strings.Builder
	for _, v := range asked {
		for name := range strings.SplitSeq(v, ",") {
			name = strings.ToLower(strings.Trim(name, " \t"))
			if strings.HasPrefix(name, "mcp-param-") && isToken(name) {
				out.WriteString(", " + name)
			}
		}
	}
	return out.String()
}

func isToken(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// hosts decides which Host headers are accepted. A page that resolves a name of its own to this machine
// (DNS rebinding) sends that name.
type hosts struct {
	names map[string]bool
	any   bool
	last  atomic.Pointer[string] // the last one accepted, because most requests have the same
}

func newHosts(list []string, local bool) (*hosts, error) {
	h := &hosts{names: map[string]bool{}, any: !local}
	for _, s := range list {
		name := strings.ToLower(s)
		host, _, ok := splitPort(name)
		if !ok || !isHost(host) {
			return h, fmt.Errorf("host %q: expected a name or an address, with or without a port", s)
		}
		h.names[name] = true
	}
	return h, nil
}

func (h *hosts) allow(host string) bool {
	if h.any {
		return true
	}
	if last := h.last.Load(); last != nil && *last == host {
		return true
	}
	name := strings.ToLower(host)
	bare, _, ok := splitPort(name)
	ok = ok && isHost(bare) && (loopback(bare) || h.names[name] || h.names[bare])
	if ok {
		h.last.Store(new(host))
	}
	return ok
}

// WarnExposed returns the warning for listening on a host that other machines
// can reach; nil for loopback.
func WarnExposed(host string, tls bool) []string {
	if loopbackBind(host) {
		return nil
	}
	reach := "exposes this server to all network interfaces."
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil || !a.IsUnspecified() {
		reach = "exposes this server to every machine that can reach that address."
	}
	lines := []string{
		"WARNING: Binding to " + host + " " + reach,
		"         Ensure proper authentication and firewall rules are in place.",
	}
	if !tls {
		lines = append(lines,
			"WARNING: Running without TLS on a public interface.",
			"         Consider using --tls for encrypted connections.")
	}
	return lines
}

// URL returns the address of the endpoint of a listener.
func URL(addr net.Addr, tls bool) string {
	scheme := "http"
	if tls {
		scheme = "https"
	}
	return scheme + "://" + addr.String() + "/mcp"
}
