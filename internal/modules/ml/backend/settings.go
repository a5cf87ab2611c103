package backend

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
)

// Settings describe one server in the configuration of a host.
type Settings struct {
	Name        string        `doc:"Name of the backend: letters, digits, _ and -."`
	Kind        string        `doc:"What it is: openai (any server with OpenAI's chat completions), llama (llama-server) or ollama." enum:"openai,llama,ollama"`
	URL         string        `yaml:"url" doc:"Its base URL: http://127.0.0.1:11434 of Ollama; http://127.0.0.1:8080/v1 of the others."`
	Key         string        `doc:"Its key, best as a reference: ${secret:NAME}."`
	Model       string        `doc:"Model of requests that name none; left out, the server's own default."`
	Models      []string      `doc:"Patterns of the models that it is asked for; none means those that it lists."`
	Concurrency int           `doc:"Requests at once; further ones wait. 0 means 4."`
	Timeout     time.Duration `doc:"Time of one answer; 0 means 5m."`
	Idle        time.Duration `doc:"Time without a byte, after which an answer has failed; 0 means 60s."`
}

// Validate returns what is wrong with the settings.
func (s Settings) Validate() error {
	u, err := url.Parse(s.URL)
	switch {
	case !validName(s.Name):
		return fmt.Errorf("name %q: expected 1 to 64 letters, digits, _ and -", s.Name)
	case s.Name == Client:
		return fmt.Errorf("name %q is that of the client's own model", s.Name)
	case !slices.Contains([]string{OpenAI, Llama, Ollama}, s.Kind):
		return fmt.Errorf("kind %q: expected openai, llama or ollama", s.Kind)
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "":
		return fmt.Errorf("url %q: expected http://host or https://host with a path, without a user and a query", s.URL)
	case s.Key != "" && u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New(
			"key: it would be sent to another machine without encryption; expected a url that begins with https://",
		)
	case s.Concurrency < 0 || s.Concurrency > 10_000:
		return fmt.Errorf("concurrency %d: expected 0 to 10000", s.Concurrency)
	case s.Timeout < 0 || s.Idle < 0:
		return errors.New("timeout, idle: expected a time, or 0 for the default")
	}
	for _, p := range s.Models {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("models %q: expected a pattern such as llama3*", p)
		}
	}
	_, err = secret.Names(s.Key)
	return err
}

// Client is the name under which callers ask for the model of the connected client.
const Client = "client"

func validName(name string) bool {
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// newServer returns the server that the settings describe.
func newServer(s Settings, key func() (secret.Text, error)) server {
	a := address{url: strings.TrimRight(s.URL, "/"), key: key, idle: s.Idle}
	if a.idle == 0 {
		a.idle = time.Minute
	}
	if s.Kind == Ollama {
		return &ollama{a}
	}
	return &openAI{a}
}
