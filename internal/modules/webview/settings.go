package webview

import (
	"fmt"
	"net/url"
	"slices"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"
)

// Settings are the settings of the module, which the configuration of a host embeds. Each zero value stands for the
// default.
type Settings struct {
	Program     string        `doc:"The browser to start: a path, or a name in PATH; empty means the first of Chromium, Chrome, Edge and Brave that this machine has."`
	Allow       []string      `doc:"What pages may reach, as rules such as example.org, *.example.org:8443 or 192.0.2.0/24; empty means every public address at every port."`
	Deny        []string      `doc:"What pages may not reach, whatever allow says."`
	Special     []string      `yaml:"network_special" doc:"Loopback, private, link-local and metadata addresses, and those of this machine, that pages may reach: such as 127.0.0.1:3000 or 10.1.0.0/16:443. Without it no page reaches them; listeners of this host are never reached."`
	Attach      []string      `doc:"Debug addresses of browsers that webview_connect may attach to, such as http://127.0.0.1:9222; empty means none. Their traffic does not pass the proxy: their requests are judged by the rules before they are sent."`
	Secrets     []Secret      `doc:"Secrets that webview_type may type into password fields. A context has a secret if a variable of its environment refers to it."`
	PerOwner    int           `yaml:"sessions" doc:"Browsers of one caller in one context at once; 0 means 4."`
	Total       int           `yaml:"everyones" doc:"Browsers at once on this host; 0 means 16."`
	Idle        time.Duration `doc:"For how long a browser is kept that no call uses; 0 means 30m."`
	Confinement string        `doc:"Whether browsers run in sandboxes, with no files of the host but uploads and downloads, users of their own and no network but the rules': auto, if this machine can make them (the default); required, or no browser starts; off." enum:"auto,required,off"`
	Memory      int64         `doc:"Memory of one browser in a sandbox, where the system can limit it; 0 means 2 GiB." unit:"bytes"`
	Processes   int           `doc:"How many processes and threads one browser may become, where the system can count them; 0 means 2000."`
	MaxDownload int64         `yaml:"max_download" doc:"The largest download; 0 means 1 GiB." unit:"bytes"`
}

// Secret is a secret that may be typed into pages.
type Secret struct {
	Name    string   `doc:"Of the secret in the secret store."`
	Origins []string `doc:"Origins whose pages it may be typed into, such as https://example.org."`
}

// network returns what pages may reach.
func (s Settings) network() sandbox.Network {
	n := sandbox.Network{
		Allow: s.Allow, Deny: s.Deny, Special: s.Special,
		SpecialHint: "modules.webview.network_special in the host's settings",
	}
	if len(n.Allow) == 0 {
		n.Allow = []string{"*:*", "0.0.0.0/0:*", "[::/0]:*"}
	}
	n.Allow = append(slices.Clone(n.Allow), s.Special...)
	return n
}

// Check reports rules and origins that cannot be read.
func (s Settings) Check() error {
	for _, known := range s.Secrets {
		for _, o := range known.Origins {
			u, err := url.Parse(o)
			if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.Path != "" ||
				u.RawQuery != "" {
				return fmt.Errorf("secrets: %q is not an origin; expected one such as https://example.org", o)
			}
		}
	}
	return proxy.Check(s.network())
}
