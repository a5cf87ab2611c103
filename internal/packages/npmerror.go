package packages

import (
	"fmt"
	"strings"
)

var npmCode = lazy(`(?m)^npm (?:error|ERR!) (?:code (E?[A-Z0-9]+)|(404))`)

// npmFailure says why npm could not install a source, from what it printed and
// its exit code, and leaves of that the lines that help.
func npmFailure(source string, exit int, printed string) error {
	code := ""
	if m := npmCode().FindStringSubmatch(printed); m != nil {
		code = m[1] + m[2]
	}
	what := map[string]string{
		"E404": "the registry has no package of this name and version; check both, and whether it is private",
		"404":  "the registry has no package of this name and version; check both, and whether it is private",

		"ETARGET":            "the registry has the package, but not in this version; choose another",
		"E401":               "the registry wants a login; set one up in the npm configuration of this host's user",
		"E403":               "the registry refuses it; check the login in the npm configuration of this host's user",
		"EINVALIDTAGNAME":    "this is no name or version of a package; write npm:NAME or npm:NAME@VERSION",
		"ENOTFOUND":          npmUnreachable,
		"EAI_AGAIN":          npmUnreachable,
		"ECONNREFUSED":       npmUnreachable,
		"ECONNRESET":         npmUnreachable,
		"ETIMEDOUT":          npmUnreachable,
		"ENETUNREACH":        npmUnreachable,
		"EHOSTUNREACH":       npmUnreachable,
		"ERR_SOCKET_TIMEOUT": npmUnreachable,
		"SELF_SIGNED_CERT_IN_CHAIN": "the certificate of the registry or of a proxy is not trusted; " +
			"name its authority in NODE_EXTRA_CA_CERTS and restart the host",
		"ENOSPC": "the disk is full; free some space and try again",
		"EDQUOT": "the disk quota is used up; free some space and try again",
		"EACCES": "a file cannot be written; check who owns the npm cache and the data folder",
		"EROFS":  "the file system is read-only",
		"EINTEGRITY": "what the registry sent is not what it announced; try again, and if it stays so do not " +
			"trust the package",
		"EBADENGINE":   "the package needs another version of Node",
		"EBADPLATFORM": "the package is not made for this system",
		"ERESOLVE":     "the packages it needs exclude each other; choose another version",
	}[code]
	err := fmt.Errorf("npm cannot install %s: it ended with code %d", source, exit)
	if what != "" {
		err = fmt.Errorf("npm cannot install %s: %s", source, what)
	}
	return withOutput(err, helpfulLines(printed))
}

const npmUnreachable = "the registry cannot be reached; check the network, the proxy settings and the registry in the npm " +
	"configuration of this host's user, and try again"

// helpfulLines are the last of npm's lines without stacks, members of error
// objects and empty ones.
func helpfulLines(printed string) string {
	var kept []string
	for line := range strings.Lines(printed) {
		line = strings.TrimRight(line, "\n")
		said := strings.TrimPrefix(strings.TrimPrefix(line, "npm error"), "npm ERR!")
		text := strings.TrimSpace(said)
		switch {
		case text == "", text == "}", text == "404", strings.HasPrefix(text, "at "), strings.HasPrefix(said, "   "),
			strings.HasPrefix(text, "A complete log of this run"):
		default:
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(0, len(kept)-10):], "\n")
}
