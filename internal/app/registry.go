package app

import (
	nethttp "net/http"
	"slices"

	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/packages"
	"gatehouse/internal/packages/registryapi"
)

// serveRegistry answers a request of the registry's read API with the packages of which the caller may call a tool.
func (a *App) serveRegistry(w nethttp.ResponseWriter, r *nethttp.Request, who protocol.Caller) {
	endpoint := "http://" + r.Host + "/mcp"
	if r.TLS != nil {
		endpoint = "https://" + r.Host + "/mcp"
	}
	if who.Bound != "" && who.Context == "" {
		who.Context = who.Bound
	}
	if who.Context != "" {
		endpoint += "/" + who.Context
	}
	registryapi.Serve(w, r, a.packagesFor(who), endpoint)
}

// packagesFor returns the installed packages of which a caller may call a tool in its context, sorted by id.
func (a *App) packagesFor(who protocol.Caller) []packages.Info {
	if a.manager == nil || who.Bound != "" && who.Context != who.Bound {
		return nil
	}
	if who.Context == "" {
		who.Context = a.views.Default()
	}
	if !slices.ContainsFunc(a.views.Open(who.Caller), func(s views.Spec) bool { return s.Name == who.Context }) {
		return nil
	}
	list, err := a.manager.List()
	if err != nil {
		return nil
	}
	mine := a.tree.callable(who.Caller)
	return slices.DeleteFunc(list, func(i packages.Info) bool {
		return !mine[i.ID] || i.State != packages.Installed
	})
}
