package packages

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// sourceKind is what is known of a kind of sources.
type sourceKind struct {
	expected string            // how such a source is written
	form     func(string) bool // whether what follows the colon is valid; nil accepts everything
	registry bool              // it names a package of a registry, which has versions
}

var sourceKinds = map[string]sourceKind{
	Command: {expected: Command},
	NPM: {
		"npm:NAME[@VERSION], such as npm:@modelcontextprotocol/server-memory@2026.8.31",
		matching(npmName),
		true,
	},
	PyPI:  {"pypi:NAME[==VERSION], such as pypi:mcp-server-time==2026.8.31", matching(pypiName), true},
	Crate: {"crate:NAME[@VERSION], such as crate:ripgrep-mcp@0.3.0", matching(crateName), true},
	Go:    {"go:MODULE/PATH[@VERSION], such as go:example.com/server/cmd/server@v1.2.0", matching(goName), true},
	OCI: {
		"oci:HOST/NAME:TAG or oci:HOST/NAME@sha256:HEX, such as oci:images.example.com/team/server:1.2",
		isImage,
		true,
	},
	Bundle:  {"mcpb:PATH or mcpb:https://HOST/PATH[#sha256=HEX]", isFile, false},
	Binary:  {"binary:PATH or binary:https://HOST/PATH#sha256=HEX", isBinary, false},
	Folder:  {"folder:PATH", nil, false},
	Archive: {"archive:PATH or archive:https://HOST/PATH[#sha256=HEX]", isFile, false},
	OpenAPI: {"openapi:PATH or openapi:https://HOST/PATH", isFile, false},
	URL:     {"url:https://HOST/PATH", nil, false},
	Unix:    {"unix:/PATH", nil, false},
	TCP:     {"tcp:HOST:PORT", nil, false},
}

// kindOrder is the order in which the kinds are listed in messages.
var kindOrder = []string{Command, NPM, PyPI, Crate, Go, OCI, Bundle, Binary, Folder, Archive, OpenAPI, URL, Unix, TCP}

// expectedSources lists how sources are written.
func expectedSources() string {
	var all []string
	for _, kind := range kindOrder {
		form, _, _ := strings.Cut(sourceKinds[kind].expected, ", such as")
		all = append(all, form)
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

var (
	// npmName is a name of the registry with a version or tag: no address, file or option.
	npmName = lazy(
		`^(@[a-z0-9][a-z0-9._-]{0,99}/)?[a-z0-9][a-z0-9._-]{0,199}(@[A-Za-z0-9][A-Za-z0-9.+-]{0,99})?$`,
	)
	// pypiName is a requirement of an exact version, or of any, and after commas further ones: no address,
	// file, marker or option.
	pypiName  = lazy(`^` + requirement + `(,` + requirement + `)*$`)
	crateName = lazy(`^[A-Za-z][A-Za-z0-9_-]{0,63}(@[0-9][A-Za-z0-9.+-]{0,99})?$`)
	goName    = lazy(
		`^[a-z0-9][a-z0-9.-]*\.[a-z]{2,20}(/[A-Za-z0-9_~][A-Za-z0-9._~-]*)+(@[A-Za-z0-9][A-Za-z0-9.+-]{0,99})?$`,
	)
	imageName = lazy(
		`^[A-Za-z0-9.-]{1,200}(:[0-9]{1,5})?/[a-z0-9][a-z0-9._/-]{0,254}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[a-f0-9]{64})?$`,
	)
	hashOfFile  = lazy(`^sha256=[a-f0-9]{64}$`)
	requirement = `[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?(\[[A-Za-z0-9._-]+(,[A-Za-z0-9._-]+)*\])?(==[A-Za-z0-9][A-Za-z0-9.+!_-]{0,99})?`
)

// isImage reports whether text is an image of a registry with a tag, a digest or both.
func isImage(text string) bool {
	if !imageName().MatchString(text) {
		return false
	}
	host, name, _ := strings.Cut(text, "/")
	return (strings.ContainsAny(host, ".:") || host == "localhost") && strings.ContainsAny(name, ":@")
}

// isFile reports whether text is a path, or an address that files are fetched from.
func isFile(text string) bool {
	if !isAddress(text) {
		return true
	}
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && u.User == nil && (u.Scheme == "https" || isLoopback(u.Hostname())) &&
		(u.Fragment == "" || hashOfFile().MatchString(u.Fragment))
}

// isBinary reports whether text is a path, or an address with the hash of its file.
func isBinary(text string) bool {
	return isFile(text) && (!isAddress(text) || strings.Contains(text, "#sha256="))
}

func isAddress(text string) bool {
	return strings.HasPrefix(text, "https://") || strings.HasPrefix(text, "http://")
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// fromRegistry reports whether a source names a package of a registry, which has versions.
func (s Source) fromRegistry() bool { return sourceKinds[s.Kind].registry }

// FromPath reports whether a source is a file or folder of this machine.
func (s Source) FromPath() bool {
	return s.Kind == Folder || slices.Contains([]string{Archive, Bundle, Binary, OpenAPI}, s.Kind) && !isAddress(s.From)
}

// FromAddress reports whether a source is a file that is fetched from an address.
func (s Source) FromAddress() bool {
	return slices.Contains([]string{Archive, Bundle, Binary, OpenAPI}, s.Kind) && isAddress(s.From)
}

// Versioned reports whether the source names a package that has versions.
func (s Source) Versioned() bool { return s.fromRegistry() }

// IsSource reports whether text begins with a kind of sources and a colon.
func IsSource(text string) bool {
	kind, _, found := strings.Cut(text, ":")
	_, known := sourceKinds[kind]
	return found && known && kind != Command
}

// Name is the name of what a source of a registry names, without its version. Of other sources it is all of it.
func (s Source) Name() string {
	name, _ := s.split()
	return name
}

// split cuts a source into its name and its version.
func (s Source) split() (name, version string) {
	switch s.Kind {
	case NPM, Crate, Go:
		if i := strings.LastIndexByte(s.From, '@'); i > 0 {
			return s.From[:i], s.From[i+1:]
		}
	case PyPI:
		first, _, _ := cutRequirement(s.From)
		name, version, _ = strings.Cut(first, "==")
		return name, version
	case OCI:
		if name, digest, ok := strings.Cut(s.From, "@"); ok {
			name, _ = cutTag(name)
			return name, digest
		}
		return cutTag(s.From)
	}
	return s.From, ""
}

// cutTag cuts the name of an image into its repository and its tag.
func cutTag(from string) (name, tag string) {
	if i := strings.LastIndexByte(from, ':'); i > strings.LastIndexByte(from, '/') {
		return from[:i], from[i+1:]
	}
	return from, ""
}

// cutRequirement cuts the first requirement of a source of PyPI from the further ones. Commas in brackets
// are between extras.
func cutRequirement(from string) (first, rest string, more bool) {
	depth := 0
	for i, r := range from {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				return from[:i], from[i+1:], true
			}
		}
	}
	return from, "", false
}

// WithVersion is the source with another version; "" means the newest. A source without versions is returned as
// it is.
func (s Source) WithVersion(version string) Source {
	name, _ := s.split()
	switch s.Kind {
	case NPM:
		if version == "" {
			version = "latest"
		}
		s.From = name + "@" + version
	case Go:
		if version == "" {
			version = "latest"
		}
		s.From = name + "@" + version
	case Crate:
		s.From = name
		if version != "" {
			s.From += "@" + version
		}
	case OCI:
		switch {
		case strings.HasPrefix(version, "sha256:"):
			s.From = name + "@" + version
		case version != "":
			s.From = name + ":" + version
		default: // a tag is resolved again; a digest alone has no newer version
			s.From, _, _ = strings.Cut(s.From, "@")
			if s.From == name {
				s.From += ":latest"
			}
		}
	case PyPI:
		_, rest, more := cutRequirement(s.From)
		s.From = name
		if version != "" {
			s.From += "==" + version
		}
		if more {
			s.From += "," + rest
		}
	}
	return s
}

// lazy compiles an expression when it is first used, because compiling all of them would delay each start.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// matching returns what reports whether a text has a form.
func matching(form func() *regexp.Regexp) func(string) bool {
	return func(text string) bool { return form().MatchString(text) }
}
