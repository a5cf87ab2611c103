package clientconfig

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
)

// linkForm is how a client's installation links are written.
type linkForm int

const (
	cursorLink linkForm = iota + 1
	vscodeLink
	insidersLink
	lmStudioLink
)

// InstallLink returns the address that, opened in a browser, makes a client offer to add
// a server.
func (c *Client) InstallLink(s Server) (string, error) {
	if c.Link == 0 {
		return "", fmt.Errorf("%s documents no installation links", c.Title)
	}
	o, err := c.makeEntry(s)
	if err != nil {
		return "", err
	}
	compact := layout{}
	config := base64.StdEncoding.EncodeToString([]byte(render(o, "", compact)))
	named := "?name=" + escapeAll(s.Name) + "&config=" + escapeAll(config)
	switch c.Link {
	case cursorLink:
		return "cursor://anysphere.cursor-deeplink/mcp/install" + named, nil
	case lmStudioLink:
		return "lmstudio://add_mcp" + named, nil
	}
	scheme := map[linkForm]string{vscodeLink: "vscode", insidersLink: "vscode-insiders"}[c.Link]
	return scheme + ":mcp/install?" + escapeAll(render(append(object{{"name", s.Name}}, o...), "", compact)), nil
}

// escapeAll is encodeURIComponent, but for marks that need no escape.
func escapeAll(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
