package clientconfig

import (
	"fmt"
	"maps"
	"slices"
)

// Server is a server in the configuration of a client: a program to start or an
// address to connect to.
type Server struct {
	Name     string
	Command  string
	Args     []string
	Env      map[string]string
	Cwd      string // only read
	URL      string
	Headers  map[string]string
	TokenEnv string // the variable of the client's environment that holds a bearer token
	Disabled bool   // only read
}

// makeEntry writes a server as a client wants it.
func (c *Client) makeEntry(s Server) (object, error) {
	sh := c.stdio
	if s.URL != "" {
		sh = c.http
		if sh.url == "" {
			return nil, fmt.Errorf("%s takes no addresses of servers; leave --http out", c.Title)
		}
	}
	var o object
	if sh.name != "" {
		o = append(o, member{sh.name, s.Name})
	}
	o = append(o, sh.before...)
	switch {
	case s.URL != "":
		headers, err := c.headers(sh, s, &o)
		if err != nil {
			return nil, err
		}
		if len(headers) > 0 {
			o = append(o, member{sh.headers, headers})
		}
	case sh.args == "":
		o = append(o, member{sh.command, append([]string{s.Command}, s.Args...)})
	default:
		o = append(o, member{sh.command, s.Command}, member{sh.args, s.Args})
	}
	if s.URL == "" && len(s.Env) > 0 {
		o = append(o, member{sh.env, ordered(s.Env)})
	}
	return append(o, sh.after...), nil
}

// headers adds the address, and the variable that holds the token where the
// client has a member for that. It returns the headers to send.
func (c *Client) headers(sh shape, s Server, o *object) (object, error) {
	*o = append(*o, member{sh.url, s.URL})
	headers := ordered(s.Headers)
	if len(headers) > 0 && sh.headers == "" {
		return nil, fmt.Errorf("%s documents no headers for servers; leave --header out", c.Title)
	}
	switch {
	case s.TokenEnv == "":
	case sh.bearer != "":
		*o = append(*o, member{sh.bearer, s.TokenEnv})
	case c.EnvRef != "":
		headers = append(headers, member{"Authorization", "Bearer " + fmt.Sprintf(c.EnvRef, s.TokenEnv)})
	default:
		return nil, fmt.Errorf("%s documents no variables in headers; leave --token-env out", c.Title)
	}
	return headers, nil
}

func ordered(m map[string]string) object {
	var o object
	for _, k := range slices.Sorted(maps.Keys(m)) {
		o = append(o, member{k, m[k]})
	}
	return o
}

// managed are the members of an entry that say how a server is reached. Others
// are the user's, and stay.
func (c *Client) managed() map[string]bool {
	keys := map[string]bool{}
	for _, sh := range []shape{c.stdio, c.http} {
		for _, k := range []string{sh.command, sh.args, sh.env, sh.url, sh.headers, sh.bearer} {
			keys[k] = true
		}
		for _, m := range sh.before {
			keys[m.key] = m.key != "enabled"
		}
	}
	return keys
}

// Servers returns the servers of a text, by name.
func (c *Client) Servers(text []byte) (all []Server, err error) {
	defer guarded(&err)
	tree, err := c.format.parse(withoutBOM(text))
	if err != nil {
		return nil, err
	}
	v, _ := lookup(tree, steps(c.path...))
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if m, ok := v[name].(map[string]any); ok {
				all = append(all, c.server(name, m))
			}
		}
	case []any:
		for _, one := range v {
			if m, ok := one.(map[string]any); ok {
				name, _ := m["name"].(string)
				all = append(all, c.server(name, m))
			}
		}
	}
	return all, nil
}

// server reads an entry.
func (c *Client) server(name string, m map[string]any) Server {
	s := Server{Name: name, Env: texts(m[c.stdio.env]), Headers: map[string]string{}}
	s.Command, _ = m[c.stdio.command].(string)
	s.Args = stringList(m[c.stdio.args])
	if words := stringList(m[c.stdio.command]); len(words) > 0 { // the program and its arguments
		s.Command, s.Args = words[0], words[1:]
	}
	s.Cwd, _ = m["cwd"].(string)
	for _, key := range []string{c.http.url, "url", "serverUrl", "httpUrl"} {
		if u, ok := m[key].(string); ok && key != "" && s.URL == "" {
			s.URL = u
		}
	}
	if c.http.headers != "" {
		s.Headers = texts(m[c.http.headers])
	}
	s.Disabled = m["disabled"] == true || m["enabled"] == false
	return s
}

func texts(v any) map[string]string {
	all := map[string]string{}
	m, _ := v.(map[string]any)
	for k, v := range m {
		all[k] = fmt.Sprint(v)
	}
	return all
}

func stringList(v any) (all []string) {
	items, _ := v.([]any)
	for _, i := range items {
		all = append(all, fmt.Sprint(i))
	}
	return all
}
