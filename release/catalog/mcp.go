package catalog

import (
	"encoding/json"

	"gatehouse/release/archive"
	"gatehouse/release/product"
	"gatehouse/release/sign"
)

// bundled is a bundle that was written.
type bundled struct{ name, sum string }

type object = map[string]any

// bundles writes a bundle (MCPB) for each platform, which desktop clients install with one click.
// Clients ask for the folders.
func (w *writer) bundles() error {
	systems := map[string]string{"windows": "win32"}
	for _, p := range w.Platforms {
		system := p.OS
		if other := systems[p.OS]; other != "" {
			system = other
		}
		command := "server/" + p.Exe(product.Name)
		program, err := archive.Read(command, w.Program(product.Name, p), true)
		if err != nil {
			return err
		}
		manifest, err := json.MarshalIndent(object{
			"manifest_version": "0.3",
			"name":             product.Name,
			"display_name":     product.Title,
			"version":          w.Version,
			"description":      product.Short,
			"long_description": product.Long,
			"author":           object{"name": product.Maintainer, "url": w.Page()},
			"homepage":         w.Page(),
			"license":          product.Licence,
			"server": object{
				"type":        "binary",
				"entry_point": command,
				"mcp_config": object{"command": "${__dirname}/" + command,
					"args": []string{"serve", "-d", "${user_config.folders}"}},
			},
			"tools_generated": true,
			"user_config": object{"folders": object{
				"type":        "directory",
				"title":       "Folder",
				"description": "Folder that tools may read and change",
				"required":    true,
			}},
			"compatibility": object{"platforms": []string{system}},
		}, "", "  ")
		if err != nil {
			return err
		}
		name := w.Base(product.Name, p) + ".mcpb"
		err = archive.Zip(w.File(name), []archive.File{
			program,
			{Name: "manifest.json", Mode: 0o644, Body: append(manifest, '\n')},
			{Name: "THIRD-PARTY-LICENCES.txt", Mode: 0o644, Body: w.licences},
		}, w.Time, w.level)
		if err != nil {
			return err
		}
		_, sum, err := sign.Digest(w.File(name))
		if err != nil {
			return err
		}
		w.bundled = append(w.bundled, bundled{name, sum})
	}
	return nil
}

// server writes what MCP's registry lists the release by.
func (w *writer) server() error {
	stdio := object{"type": "stdio"}
	folder := []object{
		{"type": "positional", "value": "serve"},
		{
			"type": "named", "name": "-d", "description": "Folder that tools may read and change",
			"format": "filepath", "isRequired": true, "isRepeated": true,
		},
	}
	packages := []object{
		{"registryType": "npm", "identifier": product.Name, "version": w.Version, "transport": stdio,
			"packageArguments": folder},
		{"registryType": "pypi", "identifier": product.Name, "version": w.Version, "transport": stdio,
			"packageArguments": folder},
	}
	for _, b := range w.bundled {
		packages = append(packages, object{
			"registryType": "mcpb", "identifier": w.Download() + "/" + b.name, "fileSha256": b.sum, "transport": stdio,
		})
	}
	return w.json("server.json", object{
		"$schema":     "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
		"name":        w.ServerName(),
		"title":       product.Title,
		"description": product.Short,
		"version":     w.Version,
		"websiteUrl":  w.Page(),
		"packages":    packages,
	})
}
